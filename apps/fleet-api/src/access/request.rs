//! What an operator asks for.

use std::time::Duration;

use admit_tower::strict_json::{self, Object, word};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Kind, Target};
use crate::fleet::{self, ResourceId};

/// The most characters of an idempotency key.
const MAX_IDEMPOTENCY_KEY_CHARS: usize = 255;
/// The most bytes of a user, a group or a host.
const MAX_NAME_BYTES: usize = 255;
/// The most bytes of an allowed command.
const MAX_COMMAND_BYTES: usize = 1_024;
/// The most allowed commands.
const MAX_COMMANDS: usize = 64;
/// The most groups.
const MAX_GROUPS: usize = 32;

/// A session that is asked for. It serialises to the same bytes whenever the same is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionRequest {
    /// What the session shall lead to.
    #[serde(serialize_with = "as_uuid")]
    pub resource: ResourceId,
    /// What exactly.
    pub target: Target,
    /// For how long at most; as long as the domain allows if nothing is said.
    pub requested_ttl: Option<Duration>,
    /// The operator's own name for the request. No part of what is asked for.
    #[serde(skip)]
    pub idempotency_key: Option<String>,
}

/// Why a body asks for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Not JSON, or not of the right form.
    #[error("the body is not a session request: {0}")]
    InvalidBody(String),
    /// The target is not one of its kind.
    #[error("the target is not valid: {0}")]
    InvalidTarget(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    resource_id: String,
    #[serde(deserialize_with = "word")]
    kind: Kind,
    target: Value,
    requested_ttl_seconds: Option<u64>,
    idempotency_key: Option<String>,
}

impl SessionRequest {
    /// Reads a request's body.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        let invalid = |why: &str| RequestError::InvalidBody(why.to_owned());
        let read = strict_json::parse(body).and_then(serde_json::from_value);
        let Object(body): Object<Body> = read.map_err(|error| invalid(&error.to_string()))?;
        let resource = fleet::uuid(&body.resource_id).map(ResourceId::new);
        let resource = resource.ok_or_else(|| invalid("resource_id is not a UUID"))?;
        if body.requested_ttl_seconds == Some(0) {
            return Err(invalid("requested_ttl_seconds is at least 1"));
        }
        let key_chars = body.idempotency_key.as_ref().map(|key| key.chars().count());
        if key_chars.is_some_and(|chars| !(1..=MAX_IDEMPOTENCY_KEY_CHARS).contains(&chars)) {
            return Err(invalid("idempotency_key has 1 to 255 characters"));
        }
        let target = target(body.target, body.kind).map_err(RequestError::InvalidTarget)?;
        let requested_ttl = body.requested_ttl_seconds.map(Duration::from_secs);
        Ok(Self { resource, target, requested_ttl, idempotency_key: body.idempotency_key })
    }
}

fn target(value: Value, kind: Kind) -> Result<Target, String> {
    if !value.as_object().is_some_and(|members| members.values().all(Value::is_object)) {
        return Err("it is not an object with an object named as the kind".to_owned());
    }
    let target: Target = serde_json::from_value(value).map_err(|error| error.to_string())?;
    if target.kind() != kind {
        return Err("its member is not named as the kind".to_owned());
    }
    let name = |what: &str, text: &str| text_is(what, text, MAX_NAME_BYTES);
    let list = |what: &str, items: &Option<Vec<String>>, most: usize, bytes: usize| {
        let items = items.as_deref().unwrap_or_default();
        if items.len() > most {
            return Err(format!("{what} has more than {most} entries"));
        }
        items.iter().try_for_each(|item| text_is(what, item, bytes))
    };
    match &target {
        Target::Ssh { user, allowed_commands } => {
            name("user", user)?;
            list("allowed_commands", allowed_commands, MAX_COMMANDS, MAX_COMMAND_BYTES)?;
        }
        Target::K8s { user, impersonate_groups } => {
            name("user", user)?;
            list("impersonate_groups", impersonate_groups, MAX_GROUPS, MAX_NAME_BYTES)?;
        }
        Target::Tcp { host, port } => {
            name("host", host)?;
            if *port == 0 {
                return Err("port is from 1 to 65535".to_owned());
            }
        }
    }
    Ok(target)
}

fn text_is(what: &str, text: &str, max_bytes: usize) -> Result<(), String> {
    if text.is_empty() || text.len() > max_bytes || text.contains(char::is_control) {
        return Err(format!("{what} is a text of 1 to {max_bytes} bytes without control characters"));
    }
    Ok(())
}

fn as_uuid<S: serde::Serializer>(resource: &ResourceId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(resource)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(change: Value) -> Result<SessionRequest, RequestError> {
        let mut body = json!({
            "resource_id": "00000000-0000-4000-8000-000000000001",
            "kind": "ssh",
            "target": { "ssh": { "user": "root" } },
        });
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        SessionRequest::parse(&serde_json::to_vec(&body).unwrap())
    }

    #[test]
    fn a_body_is_read_whole_or_not_at_all() {
        let request =
            parse(json!({"requested_ttl_seconds": 60, "idempotency_key": "é".repeat(255)})).unwrap();
        assert_eq!(request.requested_ttl, Some(Duration::from_secs(60)));
        for wrong in [
            json!({"resource_id": "1"}),
            json!({"resource_id": "00000000000040008000000000000001"}),
            json!({"kind": "vnc"}),
            json!({"kind": 1}),
            json!({"kind": {"ssh": null}}), // Was taken for the word.
            json!({"requested_ttl_seconds": 0}),
            json!({"requested_ttl_seconds": -1}),
            json!({"requested_ttl_seconds": "60"}),
            json!({"idempotency_key": ""}),
            json!({"idempotency_key": "x".repeat(256)}),
            json!({"ttl": 60}),
        ] {
            assert!(matches!(parse(wrong.clone()), Err(RequestError::InvalidBody(_))), "{wrong}");
        }
        let array = br#"["00000000-0000-4000-8000-000000000001","ssh",{"ssh":{"user":"a"}},null,null]"#;
        for wrong in [&array[..], b"", b"{", b"[]", b"{\"kind\":\"ssh\",\"kind\":\"ssh\"}", b"\xff"] {
            assert!(matches!(SessionRequest::parse(wrong), Err(RequestError::InvalidBody(_))));
        }
    }

    #[test]
    fn a_target_is_one_of_its_kind() {
        let commands =
            |n: usize| json!({"target": {"ssh": {"user": "a", "allowed_commands": vec!["ls"; n]}}});
        let groups = |n: usize| json!({"kind": "k8s", "target": {"k8s": {"user": "a", "impersonate_groups": vec!["g"; n]}}});
        for good in [
            commands(64),
            groups(32),
            json!({"kind": "tcp", "target": {"tcp": {"host": "db.internal", "port": 5432}}}),
        ] {
            assert!(parse(good.clone()).is_ok(), "{good}");
        }
        for wrong in [
            commands(65),
            groups(33),
            json!({"target": {}}),
            json!({"target": null}),
            json!({"target": "ssh"}),
            json!({"target": {"ssh": ["root", null]}}),
            json!({"target": {"tcp": {"host": "a", "port": 1}}}),
            json!({"target": {"ssh": {"user": "a"}, "tcp": {"host": "a", "port": 1}}}),
            json!({"target": {"ssh": {"user": ""}}}),
            json!({"target": {"ssh": {"user": "a\n"}}}),
            json!({"target": {"ssh": {"user": "a", "shell": "sh"}}}),
            json!({"kind": "tcp", "target": {"tcp": {"host": "a", "port": 0}}}),
            json!({"kind": "tcp", "target": {"tcp": {"host": "a", "port": 65536}}}),
        ] {
            assert!(matches!(parse(wrong.clone()), Err(RequestError::InvalidTarget(_))), "{wrong}");
        }
    }
}
