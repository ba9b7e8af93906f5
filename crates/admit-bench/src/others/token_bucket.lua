-- One token from the bucket KEYS[1], which refills by ARGV[1] tokens a second up to ARGV[2].
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'refilled_at')
local tokens, refilled_at = tonumber(bucket[1] or burst), tonumber(bucket[2] or now)
local level = math.min(burst, tokens + math.max(0, now - refilled_at) / 1000000 * rate)
if level < 1 then
    return 0
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.17g', level - 1), 'refilled_at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1)
return 1
