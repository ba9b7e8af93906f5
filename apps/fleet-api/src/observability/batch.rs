//! A batch of records: checked as a whole, and rendered as the lines that are written out.

use std::fmt;
use std::io::Write;

use admit_tower::strict_json::Object;
use serde::Serialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::record::{LogLine, Metric, audit_event};
use crate::fleet::{DomainId, NodeId};

/// What a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// A JSON array of samples.
    Metrics,
    /// Log lines, a JSON object a line.
    Logs,
    /// Audit events, a JSON object a line.
    Audit,
}

/// The bounds of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchLimits {
    /// The most records.
    pub max_records: usize,
}

/// The largest line of an audit event, whose members nobody has named: held as a tree it takes many times its size.
const MAX_AUDIT_LINE_BYTES: usize = 256 << 10;

/// Where a batch comes from, and when.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The node.
    pub node: NodeId,
    /// Its domain.
    pub domain: DomainId,
    /// When the node says that it sent the batch, RFC 3339.
    pub sent_at: &'a str,
    /// When it was accepted, RFC 3339.
    pub accepted_at: &'a str,
}

/// A checked batch, as the lines to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// A JSON object a line: where the record comes from, and the record.
    pub lines: Vec<u8>,
    /// How many. At least one.
    pub records: usize,
}

/// Why a batch was refused. None of its records is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Not of the right form, or a record is not valid.
    #[error("{0}")]
    Malformed(String),
    /// More records than the bound.
    #[error("the batch has more than {max} records")]
    TooManyRecords {
        /// The bound.
        max: usize,
    },
}

#[derive(Serialize)]
struct Line<'a, R> {
    kind: &'a str,
    node_id: String,
    domain_id: String,
    sent_at: &'a str,
    accepted_at: &'a str,
    record: R,
}

/// Checks every record of a batch and renders it.
///
/// # Errors
/// [`BatchError`] at the first record that is not valid, or if there is none, or there are too many.
pub fn render(
    kind: BatchKind,
    body: &[u8],
    origin: Origin<'_>,
    limits: BatchLimits,
) -> Result<Rendered, BatchError> {
    let mut rendering = Rendering {
        origin,
        limits,
        rendered: Rendered { lines: Vec::with_capacity(body.len()), records: 0 },
    };
    match kind {
        BatchKind::Metrics => rendering.array(body)?,
        BatchKind::Logs => rendering.lines(body, |rendering, line| {
            let Object(line) = serde_json::from_slice::<Object<LogLine>>(line)?;
            rendering.push("log", line)
        })?,
        BatchKind::Audit => rendering.lines(body, |rendering, line| {
            if line.len() > MAX_AUDIT_LINE_BYTES {
                let text = format!("the audit event is larger than {MAX_AUDIT_LINE_BYTES} bytes");
                return Err(serde_json::Error::custom(text));
            }
            rendering.push("audit", audit_event(line)?)
        })?,
    }
    match rendering.rendered.records {
        0 => Err(BatchError::Malformed("the batch is empty".to_owned())),
        _ => Ok(rendering.rendered),
    }
}

struct Rendering<'a> {
    origin: Origin<'a>,
    limits: BatchLimits,
    rendered: Rendered,
}

impl Rendering<'_> {
    fn is_full(&self) -> bool {
        self.rendered.records >= self.limits.max_records
    }

    fn too_many(&self) -> BatchError {
        BatchError::TooManyRecords { max: self.limits.max_records }
    }

    fn push(&mut self, kind: &str, record: impl Serialize) -> Result<(), serde_json::Error> {
        let Origin { node, domain, sent_at, accepted_at } = self.origin;
        let (node_id, domain_id) = (node.to_string(), domain.to_string());
        let line = Line { kind, node_id, domain_id, sent_at, accepted_at, record };
        serde_json::to_writer(&mut self.rendered.lines, &line)?;
        self.rendered.lines.write_all(b"\n").map_err(serde_json::Error::io)?;
        self.rendered.records += 1;
        Ok(())
    }

    fn lines(
        &mut self,
        body: &[u8],
        mut record: impl FnMut(&mut Self, &[u8]) -> Result<(), serde_json::Error>,
    ) -> Result<(), BatchError> {
        let body = body.strip_suffix(b"\n").unwrap_or(body);
        if body.is_empty() {
            return Ok(());
        }
        for (i, line) in body.split(|&byte| byte == b'\n').enumerate() {
            if self.is_full() {
                return Err(self.too_many());
            }
            let malformed = |error| BatchError::Malformed(format!("line {}: {error}", i + 1));
            record(self, line).map_err(malformed)?;
        }
        Ok(())
    }

    fn array(&mut self, body: &[u8]) -> Result<(), BatchError> {
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let mut samples = Samples { rendering: self, too_many: false };
        let read = deserializer.deserialize_seq(&mut samples).and_then(|()| deserializer.end());
        if samples.too_many {
            return Err(self.too_many());
        }
        read.map_err(|error| BatchError::Malformed(error.to_string()))
    }
}

/// Takes the samples of an array one by one, so that no more of them than the bound is ever held.
struct Samples<'a, 'b> {
    rendering: &'a mut Rendering<'b>,
    too_many: bool,
}

impl<'de> Visitor<'de> for &mut Samples<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of samples")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut samples: A) -> Result<(), A::Error> {
        loop {
            if self.rendering.is_full() {
                self.too_many = samples.next_element::<serde::de::IgnoredAny>()?.is_some();
                return if self.too_many { Err(A::Error::custom("too many")) } else { Ok(()) };
            }
            let Some(Object(sample)) = samples.next_element::<Object<Metric>>()? else { return Ok(()) };
            self.rendering.push("metric", sample).map_err(A::Error::custom)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const TIME: &str = r#""timestamp":"2026-01-01T00:00:00Z""#;

    fn render_all(kind: BatchKind, body: &str) -> Result<Rendered, BatchError> {
        let origin = Origin {
            node: NodeId::new(Uuid::from_u128(1)),
            domain: DomainId::new(Uuid::from_u128(2)),
            sent_at: "2026-01-01T00:00:01Z",
            accepted_at: "2026-01-01T00:00:02Z",
        };
        render(kind, body.as_bytes(), origin, BatchLimits { max_records: 3 })
    }

    fn malformed(kind: BatchKind, body: &str) -> String {
        match render_all(kind, body) {
            Err(BatchError::Malformed(why)) => why,
            other => panic!("{body}: {other:?}"),
        }
    }

    #[test]
    fn records_are_written_with_where_they_come_from() {
        let sample =
            format!(r#"{{"group":"agent_stats","name":"up","value":1,{TIME},"labels":{{"a":"b"}}}}"#);
        let rendered = render_all(BatchKind::Metrics, &format!("[{sample}]")).unwrap();
        let line: serde_json::Value = serde_json::from_slice(&rendered.lines).unwrap();
        assert_eq!(line["node_id"], "00000000-0000-0000-0000-000000000001");
        assert_eq!((&line["kind"], &line["record"]["value"]), (&"metric".into(), &1.0.into()));
        assert_eq!(line["record"]["labels"]["a"], "b");
        assert!(rendered.lines.ends_with(b"}\n"));

        let event =
            format!(r#"{{"source":"k8s","action":"create","outcome":"success",{TIME},"more":[1,{{}}]}}"#);
        let rendered = render_all(BatchKind::Audit, &format!("{event}\n{event}")).unwrap();
        assert_eq!((rendered.records, rendered.lines.iter().filter(|&&byte| byte == b'\n').count()), (2, 2));
    }

    #[test]
    fn one_wrong_record_is_named_and_refuses_the_batch() {
        let good = format!(r#"{{"severity":"err","message":"",{TIME},"unit":"a","hostname":"b"}}"#);
        assert_eq!(render_all(BatchKind::Logs, &format!("{good}\n")).unwrap().records, 1);
        for (wrong, why) in [
            ("", "EOF"),
            ("{}", "missing field `severity`"),
            (&*format!(r#"{{"severity":"error","message":"x",{TIME}}}"#), "unknown variant `error`"),
            (r#"{"severity":"err","message":"x","timestamp":"today"}"#, "RFC 3339"),
            (&*format!(r#"{{"severity":"err","message":"x",{TIME},"pid":1}}"#), "unknown field `pid`"),
            (&*format!(r#"{{"severity":"err","severity":"err","message":"x",{TIME}}}"#), "duplicate field"),
            (&*format!(r#"{{"severity":"err","message":1,{TIME}}}"#), "invalid type"),
        ] {
            let text = malformed(BatchKind::Logs, &format!("{good}\n{wrong}\n{good}"));
            assert!(text.starts_with("line 2: ") && text.contains(why), "{wrong}: {text}");
        }
        let twice = format!(r#"{{"source":"k8s","action":"a","outcome":"b",{TIME},"x":{{"y":1,"y":2}}}}"#);
        assert!(malformed(BatchKind::Audit, &twice).contains("stands twice"));
        let empty = format!(r#"{{"source":"k8s","action":"","outcome":"b",{TIME}}}"#);
        assert!(malformed(BatchKind::Audit, &empty).contains("empty"));
        let long =
            format!(r#"{{"source":"k8s","action":"a","outcome":"b",{TIME},"x":"{}"}}"#, "x".repeat(300_000));
        assert!(malformed(BatchKind::Audit, &long).contains("larger"));
        let label = format!(
            r#"[{{"group":"agent_stats","name":"up","value":1,{TIME},"labels":{{"a":"b","a":"c"}}}}]"#
        );
        assert!(malformed(BatchKind::Metrics, &label).contains("a label stands twice"));
        const ARRAYS: [(BatchKind, &str); 3] = [
            (BatchKind::Metrics, r#"[["agent_stats","up",1,"2026-08-01T00:00:00Z"]]"#),
            (BatchKind::Logs, r#"["err","x","2026-08-01T00:00:00Z"]"#),
            (BatchKind::Audit, r#"["k8s","a","b","2026-08-01T00:00:00Z"]"#),
        ];
        for (kind, array) in ARRAYS {
            assert!(malformed(kind, array).contains("expected an object"), "{array}");
        }
        // Once an object whose one member is the word, and null, was taken for it.
        let sample = format!(r#"[{{"group":{{"agent_stats":null}},"name":"up","value":1,{TIME}}}]"#);
        let line = format!(r#"{{"severity":{{"err":null}},"message":"x",{TIME}}}"#);
        let event = format!(r#"{{"source":{{"k8s":null}},"action":"a","outcome":"b",{TIME}}}"#);
        for (kind, object) in
            [(BatchKind::Metrics, sample), (BatchKind::Logs, line), (BatchKind::Audit, event)]
        {
            assert!(malformed(kind, &object).contains("expected a string"), "{object}");
        }
        for wrong in ["{}", "[1]", "[", "[] x", r#"[{"value":1e999}]"#, "\u{feff}[]"] {
            malformed(BatchKind::Metrics, wrong);
        }
    }

    #[test]
    fn a_batch_has_one_record_at_least_and_the_bound_at_most() {
        for (kind, empty) in [(BatchKind::Metrics, "[]"), (BatchKind::Logs, ""), (BatchKind::Audit, "\n")] {
            assert_eq!(malformed(kind, empty), "the batch is empty");
        }
        let sample = format!(r#"{{"group":"agent_stats","name":"up","value":1,{TIME}}}"#);
        let samples = |n: usize| format!("[{}]", vec![sample.as_str(); n].join(","));
        assert_eq!(render_all(BatchKind::Metrics, &samples(3)).unwrap().records, 3);
        let too_many = Err(BatchError::TooManyRecords { max: 3 });
        assert_eq!(render_all(BatchKind::Metrics, &samples(4)), too_many);
        let line = format!(r#"{{"severity":"err","message":"x",{TIME}}}"#);
        assert_eq!(render_all(BatchKind::Logs, &[line.as_str(); 3].join("\n")).unwrap().records, 3);
        assert_eq!(render_all(BatchKind::Logs, &[line.as_str(); 4].join("\n")), too_many);
    }
}
