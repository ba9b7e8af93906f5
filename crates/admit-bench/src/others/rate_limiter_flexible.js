// rate-limiter-flexible on PostgreSQL, told line by line as `part takes` is. Arguments: the directory of the server's socket,
// its port, and how many callers there are.
"use strict";
const { Pool } = require("pg");
const { RateLimiterPostgres } = require("rate-limiter-flexible");

const [host, port, callers] = process.argv.slice(2);
const pool = new Pool({ host, port: Number(port), user: "postgres", database: "postgres", max: 64 });
pool.on("error", () => {}); // The server may end first.
const YEAR_SECONDS = 365 * 86400;

function limiter(name, points) {
  return new Promise((resolve, reject) => {
    const options = { storeClient: pool, tableName: name, points, duration: YEAR_SECONDS, clearExpiredByTimeout: false };
    const made = new RateLimiterPostgres(options, (error) => (error ? reject(error) : resolve(made)));
  });
}

async function ask(limiter, { salt, milliseconds, requests }) {
  const end = process.hrtime.bigint() + BigInt(milliseconds) * 1000000n;
  const started = process.hrtime.bigint();
  let asked = 0;
  let done = 0;
  let granted = 0;
  const goesOn = () => (milliseconds > 0 ? process.hrtime.bigint() < end : asked < requests);
  const caller = async () => {
    while (goesOn()) {
      asked += 1;
      try {
        await limiter.consume(`bucket-${salt}`);
        granted += 1;
      } catch (refused) {
        if (refused instanceof Error) throw refused;
      }
      done += 1;
    }
  };
  await Promise.all(Array.from({ length: Number(callers) }, caller));
  return { per_second: (done * 1e9) / Number(process.hrtime.bigint() - started), granted };
}

async function main() {
  const open = await limiter("open", 2000000000);
  console.log(JSON.stringify({ port: 0 }));
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    const order = JSON.parse(line);
    const asked = order.burst === null ? open : await limiter(`burst_${order.salt}`, order.burst);
    console.log(JSON.stringify(await ask(asked, order)));
  }
  await pool.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
