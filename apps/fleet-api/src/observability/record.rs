//! What a record must hold.

use std::collections::BTreeMap;
use std::fmt;

use admit_tower::strict_json::{self, Object, word};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rfc3339;

/// One sample of a metric.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metric {
    #[serde(deserialize_with = "word")]
    group: Group,
    name: Text,
    value: f64,
    timestamp: Rfc3339,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<Labels>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Group {
    NodeResources,
    TunnelHealth,
    PeerLatency,
    AgentStats,
}

/// One log line.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogLine {
    #[serde(deserialize_with = "word")]
    severity: Severity,
    message: String,
    timestamp: Rfc3339,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
}

/// The keywords of syslog (RFC 5424).
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    Emerg,
    Alert,
    Crit,
    Err,
    Warning,
    Notice,
    Info,
    Debug,
}

/// What every audit event has; the rest is its source's own and is kept as it came.
#[derive(Debug, Deserialize)]
struct AuditEvent {
    #[serde(rename = "source", deserialize_with = "word")]
    _source: Source,
    #[serde(rename = "action")]
    _action: Text,
    #[serde(rename = "outcome")]
    _outcome: Text,
    #[serde(rename = "timestamp")]
    _timestamp: Rfc3339,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Source {
    Auditd,
    K8s,
}

/// Reads an audit event.
///
/// # Errors
/// If it is not strict JSON, or lacks what every audit event has.
pub(super) fn audit_event(line: &[u8]) -> Result<Value, serde_json::Error> {
    let event = strict_json::parse(line)?;
    Object::<AuditEvent>::deserialize(&event)?;
    Ok(event)
}

/// A text that is not empty.
#[derive(Debug, Serialize)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Err(D::Error::custom("a required text is empty")) } else { Ok(Self(text)) }
    }
}

/// A timestamp, kept as it was written.
#[derive(Debug, Serialize)]
struct Rfc3339(String);

impl<'de> Deserialize<'de> for Rfc3339 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match rfc3339::parse(&text) {
            Some(_) => Ok(Self(text)),
            None => Err(D::Error::custom("the timestamp is not an RFC 3339 text from 1970 to 9999-12-30")),
        }
    }
}

/// Texts by name, each name once.
#[derive(Debug, Serialize)]
struct Labels(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Unique;

        impl<'de> Visitor<'de> for Unique {
            type Value = Labels;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Labels, A::Error> {
                let mut labels = BTreeMap::new();
                while let Some((name, value)) = members.next_entry::<String, String>()? {
                    if labels.insert(name, value).is_some() {
                        return Err(A::Error::custom("a label stands twice"));
                    }
                }
                Ok(Labels(labels))
            }
        }

        deserializer.deserialize_map(Unique)
    }
}
