//! How requests and answers at `/json` read, for the description of the decision service.

use serde_json::{Value, json};

use super::asked::{MAX_DESCRIPTORS, MAX_ENTRIES, MAX_TEXT_CHARS};
use super::json::MAX_HITS;

/// The schemas of a request and of an answer, by their names.
pub(crate) fn schemas() -> [(String, Value); 2] {
    let text = |min: u32| json!({"type": "string", "minLength": min, "maxLength": MAX_TEXT_CHARS});
    let entry = json!({
        "type": "object", "additionalProperties": false, "required": ["key"],
        "properties": {"key": text(0), "value": {"type": "string"}},
    });
    let descriptor = json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "entries": {"type": "array", "maxItems": MAX_ENTRIES, "items": entry},
            "hitsAddend": {
                "type": "integer", "minimum": 0, "maximum": MAX_HITS,
                "description": "In place of the request's; 0 looks and takes nothing.",
            },
        },
    });
    let request = json!({
        "type": "object", "additionalProperties": false, "required": ["domain", "descriptors"],
        "properties": {
            "domain": text(1),
            "descriptors": {"type": "array", "minItems": 1, "maxItems": MAX_DESCRIPTORS, "items": descriptor},
            "hitsAddend": {
                "type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "0 is as 1.",
            },
        },
    });
    let code = json!({"enum": ["OK", "OVER_LIMIT"]});
    let status = json!({
        "type": "object", "required": ["code"],
        "properties": {
            "code": code,
            "currentLimit": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "requestsPerUnit": {"type": "integer"},
                    "unit": {"enum": ["SECOND", "MINUTE", "HOUR", "DAY"]},
                },
            },
            "limitRemaining": {"type": "integer", "minimum": 1},
            "durationUntilReset": {"type": "string"},
        },
    });
    let header =
        json!({"type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "string"}}});
    let response = json!({
        "type": "object", "required": ["overallCode", "statuses"],
        "properties": {
            "overallCode": code,
            "statuses": {"type": "array", "items": status},
            "responseHeadersToAdd": {"type": "array", "items": header},
            "rawBody": {"type": "string", "contentEncoding": "base64"},
        },
    });
    [("RateLimitRequest".into(), request), ("RateLimitResponse".into(), response)]
}
