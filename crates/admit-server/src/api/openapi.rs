//! The description of the decision service: OpenAPI 3.1, made for the policy that is in force.

use admit::MAX_CHARGES;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;

use super::charges::MAX_NAME_CHARS;
use super::idempotency::{
    ClaimForm, Claimed, CompleteForm, Completed, MAX_HEADERS, OnLapseDoc, Renewed, Replay, TicketForm,
};
use super::take::{Peeked, PeekedCharge, Taken, TakenCharge};
use super::text::{MAX_PART_CHARS, MAX_PARTS};
use crate::policy::{BudgetRule, CostSource, KeyPart, Policy};

/// A name of a header or a method (RFC 9110, section 5.6.2).
const TOKEN: &str = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$";
/// What a request line may have as its target.
const TARGET: &str = r#"^/[!"$-;=@-_a-z{|}~]*(\?[!$-;=?-~]*)?$"#;

/// The schemas that types have.
#[derive(OpenApi)]
#[openapi(
    info(title = "Admit", description = "Decides which requests may run, and runs retries once."),
    components(schemas(
        ClaimForm,
        Claimed,
        CompleteForm,
        Completed,
        OnLapseDoc,
        Peeked,
        PeekedCharge,
        Renewed,
        Replay,
        Taken,
        TakenCharge,
        TicketForm
    ))
)]
struct Typed;

/// The document. It names the policy's budgets, and what each is kept by.
pub fn document(policy: &Policy) -> Value {
    let mut document = serde_json::to_value(Typed::openapi()).unwrap_or_default(); // It always serialises.
    let schemas = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut);
    if let Some(schemas) = schemas {
        if let Some(form) = schemas.get_mut("CompleteForm") {
            complete_in_detail(form);
        }
        schemas.insert("Problem".into(), problem());
        schemas.insert("Charge".into(), charge(policy));
        schemas.insert("Call".into(), call());
        schemas.extend(crate::envoy::schemas());
    }
    document["paths"] = paths();
    if let Some(prefix) = &policy.server.decisions.prefix {
        document["servers"] = json!([{"url": prefix.as_str()}]);
    }
    let bearer = json!({
        "type": "http", "scheme": "bearer", "description": "One of the policy's decision_tokens."
    });
    document["components"]["securitySchemes"] = json!({"decision_token": bearer});
    if !policy.server.decisions.tokens.is_empty() {
        document["security"] = json!([{"decision_token": []}]);
    }
    document
}

/// What the types do not say.
fn complete_in_detail(form: &mut Value) {
    form["not"] = json!({"required": ["body", "body_base64"]});
    form["properties"]["body_base64"]["pattern"] =
        "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$".into();
    let headers = &mut form["properties"]["headers"];
    headers["maxProperties"] = MAX_HEADERS.into();
    headers["propertyNames"] = json!({"pattern": TOKEN});
    headers["additionalProperties"]["pattern"] = "^[\t\\x20-\\x7e]*$".into();
}

fn problem() -> Value {
    json!({
        "type": "object",
        "description": "A problem document (RFC 9457).",
        "required": ["type", "title", "status"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599},
            "detail": {"type": "string"},
            "error": {"type": "string", "description": "The type in one word."},
            "pointer": {"type": "string", "description": "With 400: where the call is wrong, as a JSON pointer."},
            "violated-policies": {"type": "array", "items": {"type": "string"}},
            "reason": {"type": "string"},
            "retry_after_seconds": {"type": "integer", "minimum": 1},
            "limit_window": {"type": "string"},
            "original_status": {"type": "integer"},
            "correlation_id": {"type": "string", "description": "What the cause stands under in the log."},
        },
    })
}

fn call() -> Value {
    let charge = json!({"$ref": "#/components/schemas/Charge"});
    json!({
        "description": "One charge, or a list of them: all or nothing.",
        "anyOf": [
            charge,
            {
                "type": "object", "additionalProperties": false, "required": ["charges"],
                "properties": {"charges": {
                    "type": "array", "minItems": 1, "maxItems": MAX_CHARGES, "items": charge,
                }},
            },
        ],
    })
}

fn charge(policy: &Policy) -> Value {
    let mut kinds: Vec<Value> = policy.budgets.iter().map(named).collect();
    let scopes: Vec<&str> = policy.server.decisions.scopes.iter().map(admit::Scope::as_str).collect();
    if !scopes.is_empty() {
        kinds.extend(carried(&scopes));
    }
    json!({"description": "A charge on a budget of the policy, or with a budget of its own.", "anyOf": kinds})
}

fn name() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS})
}

fn named(budget: &BudgetRule) -> Value {
    let text = || json!({"type": "string", "minLength": 1, "maxLength": MAX_PART_CHARS});
    let varying: Vec<&KeyPart> =
        budget.by.parts.iter().filter(|part| !matches!(part, KeyPart::Constant(_))).collect();
    let part = |part: &KeyPart| match part {
        KeyPart::Ip => json!({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
        _ => text(),
    };
    let list = json!({
        "type": "array",
        "prefixItems": varying.iter().map(|kind| part(kind)).collect::<Vec<_>>(),
        "items": false,
        "minItems": varying.len(),
        "maxItems": varying.len().min(MAX_PARTS),
    });
    let key = match varying.as_slice() {
        [] => json!({"type": "array", "maxItems": 0, "description": "Nothing: the budget is one for all."}),
        [one] => part(one),
        _ => list,
    };
    let mut required = vec!["budget"];
    if !varying.is_empty() {
        required.push("key");
    }
    let mut cost = json!({"type": "number", "minimum": 0});
    match &budget.cost {
        CostSource::Constant(constant) => cost["default"] = constant.tokens().into(),
        CostSource::BodyBytes | CostSource::Carried { .. } => required.push("cost"),
    }
    json!({
        "type": "object",
        "title": budget.scope.as_str(),
        "description": format!("{} by {}", budget.budget, budget.by),
        "additionalProperties": false,
        "required": required,
        "properties": {
            "budget": {"const": budget.scope.as_str()},
            "key": key,
            "cost": cost,
            "tenant": name(),
            "plan": name(),
        },
    })
}

/// One with a budget in numbers, one with a budget in words.
fn carried(scopes: &[&str]) -> [Value; 2] {
    let kind = |title: &str, required: &[&str], rate: Value, burst: Option<Value>| {
        let mut properties = json!({
            "scope": {"enum": scopes},
            "key": {"type": "string", "minLength": 1, "maxLength": MAX_PART_CHARS},
            "cost": {"type": "number", "minimum": 0, "default": 1},
            "rate": rate,
        });
        if let Some(burst) = burst {
            properties["burst"] = burst;
        }
        json!({
            "type": "object", "title": title, "additionalProperties": false, "required": required,
            "properties": properties,
        })
    };
    let number = |what| json!({"type": "number", "exclusiveMinimum": 0, "description": what});
    let (rate, burst) = (number("Tokens a second."), number("Tokens."));
    let words = json!({"type": "string", "examples": ["100/hour burst 20"]});
    [
        kind("rate and burst", &["scope", "key", "rate", "burst"], rate, Some(burst)),
        kind("rate in words", &["scope", "key", "rate"], words, None),
    ]
}

/// What an answer has beside its status.
struct Answer {
    status: u16,
    description: &'static str,
    schema: Option<&'static str>,
    headers: &'static [&'static str],
}

const fn answer(status: u16, description: &'static str, schema: Option<&'static str>) -> Answer {
    Answer { status, description, schema, headers: &[] }
}

const fn refusal(status: u16, description: &'static str) -> Answer {
    answer(status, description, Some("Problem"))
}

const LIMITS: &[&str] = &["RateLimit-Policy", "RateLimit"];
const REFUSED: Answer = Answer {
    headers: &["Retry-After", "RateLimit-Policy", "RateLimit"],
    ..refusal(429, "A budget does not cover it. Nothing was debited. Without Retry-After it never fits.")
};
const IN_FLIGHT: Answer = Answer {
    headers: &["Retry-After"],
    ..refusal(409, "Another run has the key (with Retry-After), or it is not run again (without).")
};
const UNAUTHORIZED: Answer =
    Answer { headers: &["WWW-Authenticate"], ..refusal(401, "No decision token, or an unknown one.") };
const UNAVAILABLE: Answer = Answer {
    headers: &["X-Correlation-Id"],
    ..refusal(503, "The store could not answer. It says nothing of any limit.")
};

/// What any call may be answered.
const ALWAYS: [Answer; 7] = [
    refusal(400, "The call has not the form described here; the pointer says where."),
    UNAUTHORIZED,
    refusal(408, "The body did not arrive in time."),
    refusal(413, "The body is too long."),
    refusal(415, "The body is not JSON by its content type."),
    refusal(500, "A mistake of the service; the log has the cause."),
    UNAVAILABLE,
];

fn responses<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Value {
    let mut responses = Map::new();
    for Answer { status, description, schema, headers } in answers {
        let mut response = json!({"description": description});
        if let Some(schema) = schema {
            let media = if *schema == "Problem" { "application/problem+json" } else { "application/json" };
            let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
            response["content"] = json!({media: {"schema": schema}});
        }
        for name in *headers {
            let kind = if *name == "Retry-After" { "integer" } else { "string" };
            response["headers"][name] = json!({"schema": {"type": kind}});
        }
        responses.insert(status.to_string(), response);
    }
    responses.into()
}

fn paths() -> Value {
    let post = |id: &str, summary: &str, form: &str, answers: &[Answer]| {
        let schema = json!({"$ref": format!("#/components/schemas/{form}")});
        json!({"post": {
            "operationId": id,
            "summary": summary,
            "requestBody": {"required": true, "content": {"application/json": {"schema": schema}}},
            "responses": responses(answers.iter().chain(&ALWAYS)),
        }})
    };
    let taken = Answer { headers: LIMITS, ..answer(200, "All charges were debited.", Some("Taken")) };
    let lost = || refusal(409, "The ticket no longer holds its key.");
    let claimed = answer(200, "Run, or answer as the run before did.", Some("Claimed"));
    let mismatch = refusal(422, "The key was used with another payload.");
    let unfit =
        || refusal(422, "The call has the form, and means nothing by this policy; the pointer says where.");
    let mut paths = json!({
        "/v1/take": post("take", "Debit all charges, or none.", "Call", &[taken, unfit(), REFUSED]),
        "/v1/peek": post("peek", "Tell what a take would come to.", "Call",
            &[answer(200, "What it would come to. Nothing was written.", Some("Peeked")), unfit()]),
        "/v1/refund": post("refund", "Give back what a granted take debited.", "Call",
            &[answer(204, "It was given back.", None), unfit()]),
        "/v1/idempotency/claim": post("claim", "Claim a key for one run.", "ClaimForm",
            &[claimed, IN_FLIGHT, mismatch]),
        "/v1/idempotency/renew": post("renew", "Extend the lease of a run.", "TicketForm",
            &[answer(200, "It was extended.", Some("Renewed")), lost()]),
        "/v1/idempotency/complete": post("complete", "Record what a run answered.", "CompleteForm",
            &[answer(200, "It was recorded.", Some("Completed")), lost()]),
        "/v1/idempotency/release": post("release", "Free the key.", "TicketForm",
            &[answer(204, "It is free.", None), lost()]),
    });
    paths["/openapi.json"] = json!({"get": {
        "operationId": "openapi", "summary": "This document.", "security": [],
        "responses": {"200": {"description": "This document.", "content": {"application/json": {"schema": {"type": "object"}}}}},
    }});
    let decided = |status, what| answer(status, what, Some("RateLimitResponse"));
    let over = Answer {
        headers: REFUSED.headers,
        ..decided(429, "A descriptor is over its limit. Nothing was debited.")
    };
    let within = Answer { headers: LIMITS, ..decided(200, "All descriptors were debited.") };
    paths["/json"] =
        post("rate_limit", "Envoy's ShouldRateLimit, as JSON.", "RateLimitRequest", &[within, over]);
    paths["/authorize"] = authorize();
    paths
}

/// Asked with whatever method, as some proxies ask with that of the request.
fn authorize() -> Value {
    let header = |name: &str, pattern: &str, description: &str| {
        let schema = json!({"type": "string", "minLength": 1, "pattern": pattern});
        json!({"name": name, "in": "header", "description": description, "schema": schema})
    };
    let refuse_with = json!({
        "name": "refuse_with", "in": "query", "schema": {"enum": ["401", "403"]},
        "description": "The status of every refusal; X-Admit-Status then has the true one.",
    });
    let answers = [
        Answer { headers: LIMITS, ..answer(200, "The proxy may forward the request.", None) },
        refusal(
            400,
            "The headers that tell the request's method and path are none, or what it costs cannot be told.",
        ),
        refusal(401, "The request has no known API key."),
        refusal(403, "Any refusal, if that was asked for."),
        refusal(411, "What it costs is the length of its body, which is not known."),
        REFUSED,
        refusal(500, "A mistake of the service; the log has the cause."),
        UNAVAILABLE,
    ];
    let responses = responses(&answers);
    let operation = |method: &str| {
        json!({
            "operationId": format!("authorize_{method}"),
            "summary": "Whether a request may run: for other proxies.",
            "security": [],
            "parameters": [
                refuse_with,
                header("X-Forwarded-Method", TOKEN, "The method of the request that is asked about, or in X-Original-Method."),
                header("X-Forwarded-Uri", TARGET, "Its path and query, or in X-Original-Uri."),
            ],
            "responses": responses,
        })
    };
    let methods = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
    Value::Object(methods.iter().map(|method| ((*method).to_owned(), operation(method))).collect())
}
