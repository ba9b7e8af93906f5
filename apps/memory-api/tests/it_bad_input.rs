//! Whatever a client sends: a clear 4xx that names what is wrong, and nothing of the hour is spent.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::time::Duration;

use http::Method;
use memory_api::cursor::Binding;
use memory_api::storage::Position;
use serde_json::{Value, json};
use service::{ACME, BETA, Memory, batch, raw};

const SECOND: Duration = Duration::from_secs(1);
const ITEM: &str = r#"{"kind":"note","text":"a note"}"#;
const MIB: usize = 1 << 20;

/// Sends a body that is no batch, and checks that the answer says why.
async fn refuses(memory: &Memory, body: impl Into<bytes::Bytes>, status: u16, detail: &str) -> Value {
    let reply = memory.ingest(ACME, body).send().await;
    memory.advance(SECOND);
    assert_eq!(reply.header("ratelimit"), Some("\"burst\";r=9;t=1"), "only of the second is spent");
    reply.is_problem(status, detail)
}

/// A batch of these members besides the project, in JSON.
fn with(members: &str) -> String {
    format!(r#"{{"project":"garden",{members}}}"#)
}

/// A batch of one item with these members.
fn of(members: &str) -> String {
    with(&format!(r#""items":[{{{members}}}]"#))
}

/// The hour is whole, and nothing was stored.
async fn nothing_was_spent(memory: &Memory) {
    assert_eq!((memory.rows("jobs"), memory.rows("idempotency_records")), (0, 0));
    let good = memory.ingest_id(ACME, "good").send().await;
    assert_eq!(good.is(202).header("ratelimit"), Some("\"ingest\";r=99;t=36, \"burst\";r=9;t=1"));
}

on_both_stores! {
    async fn bodies_that_are_not_json(memory) {
        for (body, detail) in [
            ("", "the body is not JSON: EOF"),
            ("{", "the body is not JSON: EOF"),
            ("hello", "the body is not JSON: expected"),
            ("{\"project\": garden}", "the body is not JSON: expected value"),
            ("{'project': 1}", "the body is not JSON: key must be a string"),
            ("{\"project\":\"garden\",}", "the body is not JSON: trailing comma"),
            ("{\"project\":\"\\ud800\"}", "the body is not JSON: "),
            ("{\"project\":1e999}", "the body is not JSON: number out of range"),
            ("\u{feff}{}", "the body is not JSON: expected value"),
            (
                &format!("{}x", with(&format!(r#""items":[{ITEM}]"#))),
                "the body is not JSON: trailing characters",
            ),
        ] {
            let problem = refuses(&memory, body.to_owned(), 400, detail).await;
            assert_eq!(problem["error"], "invalid_body");
        }
        refuses(&memory, &b"{\"project\":\"\xff\"}"[..], 400, "the body is not UTF-8 from byte 12 on").await;
        nothing_was_spent(&memory).await;
    }

    async fn bodies_of_another_shape(memory) {
        for (body, detail) in [
            ("null".to_owned(), "the body: invalid type: null"),
            ("[]".to_owned(), "the body: invalid type: sequence"),
            (format!(r#"["id","garden",[{ITEM}]]"#), "the body: invalid type: sequence"),
            ("{}".to_owned(), "missing field `project`"),
            (r#"{"project":"garden"}"#.to_owned(), "missing field `items`"),
            (format!(r#"{{"project":7,"items":[{ITEM}]}}"#), "project: invalid type: integer `7`"),
            (with(r#""items":"x""#), "items: invalid type: string"),
            (with(r#""items":{}"#), "items: invalid type: map"),
            (with(r#""items":["x"]"#), "items[0]: invalid type: string"),
            (with(r#""items":[["note","a note"]]"#), "items[0]: invalid type: sequence"),
            (with(&format!(r#""items":[{ITEM},{{"kind":"note"}}]"#)), "items[1]: missing field `text`"),
            (of(r#""kind":null,"text":"a""#), "items[0].kind: invalid type: null"),
            (of(r#""kind":"n","text":["a"]"#), "items[0].text: invalid type: sequence"),
            (of(r#""kind":"n","text":"a","tags":"b""#), "items[0].tags: invalid type: string"),
            (of(r#""kind":"n","text":"a","tags":null"#), "items[0].tags: invalid type: null"),
            (of(r#""kind":"n","text":"a","tags":["b",1.5]"#), "items[0].tags[1]: invalid type: floating"),
            (with(&format!(r#""items":[{ITEM}],"ingest_id":7"#)), "ingest_id: invalid type: integer `7`"),
            (with(&format!(r#""items":[{ITEM}],"ingest_id":null"#)), "ingest_id: invalid type: null"),
            // Unknown members are named, and those that differ in case only are unknown.
            (with(&format!(r#""items":[{ITEM}],"colour":1"#)), "colour: unknown field `colour`"),
            (with(&format!(r#""items":[{ITEM}],"Ingest_id":"x""#)), "unknown field `Ingest_id`"),
            (of(r#""kind":"n","text":"a","tag":"b""#), "items[0].tag: unknown field `tag`"),
            // A member twice has no one meaning.
            (with(&format!(r#""items":[{ITEM}],"project":"garden""#)), "duplicate field `project`"),
            (with(&format!(r#""items":[{ITEM}],"items":[]"#)), "duplicate field `items`"),
            (
                with(&format!(r#""items":[{ITEM}],"ingest_id":"a","\u0069ngest_id":"b""#)),
                "duplicate field `ingest_id`",
            ),
            (of(r#""kind":"n","text":"a","text":"b""#), "duplicate field `text`"),
            (of(r#""kind":"n","text":"a","tags":[],"tags":[]"#), "duplicate field `tags`"),
            // Deep nesting, wherever it stands.
            ("[".repeat(200_000), "the body: invalid type: sequence"),
            (format!(r#"{{"project":{}"#, "[".repeat(200_000)), "project: invalid type: sequence"),
            (with(&format!(r#""items":{}"#, "[".repeat(200_000))), "items[0]: invalid type: sequence"),
            (
                with(&format!(r#""items":{}"#, r#"[{"tags":"#.repeat(50_000))),
                "items[0].tags[0]: invalid type: map",
            ),
            (with(&r#""x":{"#.repeat(50_000)), "x: unknown field `x`"),
        ] {
            let problem = refuses(&memory, body, 400, detail).await;
            assert_eq!(problem["error"], "invalid_body");
        }
        nothing_was_spent(&memory).await;
    }

    async fn values_out_of_bounds(memory) {
        let text = |member: &str, chars: usize| format!(r#""{member}":"{}""#, "é".repeat(chars));
        let items = |count: usize| with(&format!(r#""items":[{}]"#, vec![ITEM; count].join(",")));
        let id = |id: &str| with(&format!(r#""items":[{ITEM}],"ingest_id":"{id}""#));
        let tags = |tags: &[String]| of(&format!(r#""kind":"n","text":"a","tags":{}"#, json!(tags)));
        for (body, detail) in [
            (id(""), "ingest_id is 0 characters long; it takes 1 to 255"),
            (id(&"a".repeat(256)), "ingest_id is 256 characters long; it takes 1 to 255"),
            (id(&"é".repeat(256)), "ingest_id is 256 characters long; it takes 1 to 255"),
            (id("\\u0000"), "ingest_id is a text with U+0000"),
            (format!(r#"{{{},"items":[{ITEM}]}}"#, text("project", 0)), "project is 0 characters long"),
            (format!(r#"{{{},"items":[{ITEM}]}}"#, text("project", 201)), "project is 201 characters long"),
            (items(0), "items is a list of 0; it takes 1 to 1000 items"),
            (items(1_001), "items is a list of 1001; it takes 1 to 1000 items"),
            (of(&format!(r#"{},"text":"a""#, text("kind", 65))), "items[0].kind is 65 characters long"),
            (of(&format!(r#""kind":"n",{}"#, text("text", 0))), "items[0].text is 0 characters long"),
            (
                of(&format!(r#""kind":"n",{}"#, text("text", 32_769))),
                "items[0].text is 32769 characters long",
            ),
            (of(r#""kind":"n","text":"a\u0000b""#), "items[0].text is a text with U+0000"),
            (tags(&vec!["x".to_owned(); 33]), "items[0].tags is a list of 33; it takes 0 to 32 tags"),
            (tags(&["x".to_owned(), "x".repeat(65)]), "items[0].tags[1] is 65 characters long"),
            (tags(&[String::new()]), "items[0].tags[0] is 0 characters long"),
        ] {
            refuses(&memory, body, 400, detail).await;
        }
        nothing_was_spent(&memory).await;
        // What is just in bounds is taken.
        memory.ingest(ACME, items(1_000)).send().await.is(202);
        memory
            .ingest(ACME, of(&format!(r#"{},{}"#, text("kind", 64), text("text", 32_768))))
            .send()
            .await
            .is(202);
        memory.ingest(ACME, tags(&vec!["é".repeat(64); 32])).send().await.is(202);
        memory.ingest(ACME, format!(r#"{{{},"items":[{ITEM}]}}"#, text("project", 200))).send().await.is(202);
    }

    async fn bodies_that_are_too_long(memory) {
        let detail = "the body is longer than 1048576 bytes; send the items in smaller batches";
        let long = of(&format!(r#""kind":"n","text":"{}""#, "a".repeat(2 * MIB)));
        let problem = refuses(&memory, long.clone(), 413, detail).await;
        assert_eq!(problem["error"], "body_too_large");
        refuses(&memory, vec![b' '; MIB + 1], 413, detail).await;

        // In pieces, of which the head tells no length; and with a length, before the client sends it.
        let head =
            format!("POST /memory/ingest HTTP/1.1\r\nhost: x\r\nx-api-key: {ACME}\r\nconnection: close\r\n");
        let chunked =
            format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
        let reply = raw(memory.address, chunked.as_bytes(), |_| false).await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains(detail), "{reply}");
        let asks = format!("{head}content-length: {}\r\nexpect: 100-continue\r\n\r\n", 2 * MIB);
        let reply = raw(memory.address, asks.as_bytes(), |reply| reply.contains('}')).await;
        assert!(reply.starts_with("HTTP/1.1 413 ") && reply.contains(detail), "{reply}");

        memory.advance(SECOND);
        nothing_was_spent(&memory).await;
        // A mebibyte is not too long.
        let body = of(r#""kind":"n","text":"a""#);
        memory.ingest(ACME, format!("{body}{}", " ".repeat(MIB - body.len()))).send().await.is(202);
    }

    async fn bodies_of_another_kind(memory) {
        let body = batch("id_a", "a note").to_string();
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json", ""] {
            let reply = memory.ingest(ACME, body.clone()).header("content-type", kind).send().await;
            memory.advance(SECOND);
            let problem = reply.is_problem(415, "send Content-Type: application/json");
            assert_eq!(problem["error"], "unsupported_media_type");
        }
        for encoding in ["gzip", "br", "identity, gzip", "x"] {
            let reply = memory.ingest(ACME, body.clone()).header("content-encoding", encoding).send().await;
            memory.advance(SECOND);
            reply.is_problem(415, "without a Content-Encoding");
        }
        let not_text = memory.ingest(ACME, body.clone()).header_bytes("content-type", b"\xff").send().await;
        not_text.is_problem(415, "send Content-Type: application/json");
        memory.advance(SECOND);
        nothing_was_spent(&memory).await;
        for kind in ["application/json; charset=utf-8", "Application/JSON", "application/vnd.x+json"] {
            memory.ingest(ACME, body.clone()).header("content-type", kind).send().await.is(202);
        }
    }

    async fn parameters(memory) {
        const LIMIT: &str = "the parameter limit takes a whole number from 1 to 100";
        let long = format!("q={}", "a".repeat(1_001));
        for (path, query, detail) in [
            (
                "query",
                "colour=red",
                "unknown parameter \"colour\"; this endpoint takes q, project, kind, limit, cursor",
            ),
            ("query", "Q=water", "unknown parameter \"Q\""),
            ("query", "q=a&q=a", "the parameter q stands twice"),
            ("query", "q=%ff", "the query string is not UTF-8 behind its percent signs"),
            ("query", "%ff=q", "the query string is not UTF-8"),
            ("query", &long, "the parameter q takes at most 1000 characters"),
            ("query", "project=", "the parameter project takes 1 to 200 characters"),
            ("query", "project=a%00", "U+0000 not among them"),
            ("query", "kind=", "the parameter kind takes 1 to 64 characters"),
            ("query", "limit=0", LIMIT),
            ("query", "limit=101", LIMIT),
            ("query", "limit=ten", LIMIT),
            ("query", "limit=-1", LIMIT),
            ("query", "limit=", LIMIT),
            ("query", "limit=99999999999999999999", LIMIT),
            ("projects", "limit=1.5", LIMIT),
            ("projects", "q=water", "unknown parameter \"q\"; this endpoint takes limit, cursor"),
            ("skills", "limit=5&limit=5", "the parameter limit stands twice"),
            ("skills", "project=garden", "unknown parameter \"project\""),
            ("jobs/x", "limit=1", "unknown parameter \"limit\"; this endpoint takes none"),
        ] {
            let reply = memory.get(&format!("/memory/{path}?{query}"), ACME).send().await;
            memory.advance(SECOND);
            let problem = reply.is_problem(400, detail);
            assert_eq!(problem["error"], "invalid_parameter");
            assert_eq!(reply.header("ratelimit"), Some("\"burst\";r=9;t=1"), "only of the second is spent");
        }
        let call = memory.call(Method::POST, "/memory/ingest?dry_run=1").header("x-api-key", ACME);
        let reply = call.body(batch("id_a", "a note").to_string()).send().await;
        reply.is_problem(400, "unknown parameter \"dry_run\"; this endpoint takes none");
        memory.advance(SECOND);
        for (path, left) in [("query?q=", 999), ("projects?", 99)] {
            let reply = memory.get(&format!("/memory/{path}"), ACME).send().await;
            assert!(reply.is(200).header("ratelimit").unwrap().contains(&format!(";r={left};")), "{reply:?}");
        }
        nothing_was_spent(&memory).await;
    }

    async fn cursors_that_lead_nowhere(memory) {
        for key in [ACME, BETA] {
            let items = json!([{"kind": "skill", "text": "knit"}, {"kind": "skill", "text": "to water"}]);
            for project in ["garden", "kitchen"] {
                let body = json!({"project": project, "items": items}).to_string();
                let job = memory.ingest(key, body).send().await.is(202).job_id();
                memory.done(key, &job).await;
            }
        }
        let cursor = async |path: &str| {
            let page = memory.get(&format!("/memory/{path}"), ACME).send().await.is(200).json();
            page["next_cursor"].as_str().unwrap().to_owned()
        };
        let paths = [
            "query?limit=1",
            "query?limit=1&q=knit",
            "query?limit=1&kind=skill",
            "skills?limit=1",
            "projects?limit=1",
        ];
        for path in paths {
            let own = cursor(path).await;
            memory.advance(SECOND);
            memory.get(&format!("/memory/{path}&cursor={own}"), ACME).send().await.is(200);
            // Another tenant's.
            let foreign = memory.get(&format!("/memory/{path}&cursor={own}"), BETA).send().await;
            let problem =
                foreign.is_problem(400, "the parameter cursor: the cursor belongs to another request");
            assert_eq!(problem["error"], "invalid_parameter");
            // Another list's or search's.
            for other in paths {
                let reply = memory.get(&format!("/memory/{other}&cursor={own}"), ACME).send().await;
                if other == path {
                    reply.is(200);
                } else {
                    reply.is_problem(400, "belongs to another request");
                }
                memory.advance(SECOND);
            }
            // Garbage.
            for wrong in [
                "",
                "x",
                "AQ",
                "%21%21",
                "AAAAAAAAAAAAAAAA",
                &own[1..],
                &format!("{own}A"),
                &"A".repeat(8_000),
            ] {
                let reply = memory.get(&format!("/memory/{path}&cursor={wrong}"), ACME).send().await;
                reply.is_problem(400, "the parameter cursor: ");
                memory.advance(SECOND);
            }
        }
        // A cursor that somebody made up holds no secret, and does no harm either.
        let name = |name: &str| Position::Project(name.to_owned());
        for (path, binding, position) in [
            ("projects", Binding::of(&["projects", "acme"]), name("\0")),
            ("projects", Binding::of(&["projects", "acme"]), Position::Skill([7; 32])),
            ("skills", Binding::of(&["skills", "acme"]), name("garden")),
            ("query", Binding::of(&["query", "acme", "", "", ""]), Position::Skill([7; 32])),
        ] {
            let cursor = binding.encode(&position);
            let reply = memory.get(&format!("/memory/{path}?cursor={cursor}"), ACME).send().await;
            reply.is_problem(400, "not one that this service made");
        }
    }

    async fn job_ids(memory) {
        let job = memory.ingest_id(ACME, "id_a").send().await.is(202).job_id();
        let absent = "00000000-0000-4000-8000-000000000000";
        let wrong = [
            "x",
            "1",
            absent,
            "%00",
            "%ff",
            "..%2f..",
            "%F0%9F%A6%80",
            &format!("{job}0"),
            &job[1..],
            &job.replace('-', ""), // Were taken for the id: this, and the next two.
            &format!("urn:uuid:{job}"),
            &format!("%7B{job}%7D"),
            &"9".repeat(900),
        ];
        for id in wrong {
            let reply = memory.get(&format!("/memory/jobs/{id}"), ACME).send().await;
            memory.advance(SECOND);
            assert!(reply.status == 404 || reply.status == 400, "{id}: {reply:?}");
            reply.is_problem(reply.status.as_u16(), "");
        }
        memory.get(&format!("/memory/jobs/{job}"), ACME).send().await.is(200);
        let foreign = memory.get(&format!("/memory/jobs/{job}"), BETA).send().await;
        let nobody = memory.get(&format!("/memory/jobs/{absent}"), BETA).send().await;
        foreign.is_problem(404, "no such job");
        assert_eq!(foreign.body, nobody.body, "another tenant's job is told like none at all");
    }

    async fn who_is_unknown_spends_nothing(memory) {
        let requests = [
            (Method::POST, "/memory/ingest"),
            (Method::GET, "/memory/query?q=a"),
            (Method::GET, "/memory/skills"),
            (Method::GET, "/memory/projects"),
            (Method::GET, "/memory/jobs/x"),
        ];
        for (method, path) in requests {
            let call = || memory.call(method.clone(), path).body(batch("id_a", "a note").to_string());
            for call in [
                call(),
                call().header("x-api-key", "nobody"),
                call().header("x-api-key", ""),
                call().header("x-api-key", &"x".repeat(5_000)),
                call().header_bytes("x-api-key", b"\xff\xfe"),
                call().header("apikey", "key-of-acm"),
                call().header("authorization", "Bearer nobody"),
                call().header("authorization", "Bearer"),
                call().header("authorization", "Basic a2V5LW9mLWFjbWU6"),
                call().header("authorization", ACME),
                call().header("cookie", "x-api-key=key-of-acme"),
                // The first of the three that is there counts.
                call().header("x-api-key", "nobody").header("authorization", "Bearer key-of-acme"),
            ] {
                let reply = call.send().await;
                let problem = reply.is_problem(401, "X-Api-Key, apikey, or Authorization: Bearer");
                assert_eq!(problem["error"], "unauthorized");
                assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
                assert_eq!(reply.header("ratelimit"), None);
            }
        }
        for path in [
            "/",
            "/memory",
            "/memory/",
            "/memory/Query",
            "/memory/query/",
            "//memory/query",
            "/memory/jobs",
            "/memory/jobs/",
            "/memory/jobs/a/b",
            "/admin",
            "/memory/../healthz",
            "/%6demory/query",
        ] {
            let reply = memory.get(path, ACME).send().await;
            assert_eq!(
                reply.is_problem(404, "there is nothing at this path")["error"],
                "not_found",
                "{path}"
            );
        }
        for (path, allow) in [
            ("/memory/ingest", "POST"),
            ("/memory/query", "GET,HEAD"),
            ("/memory/skills", "GET,HEAD"),
            ("/memory/projects", "GET,HEAD"),
            ("/memory/jobs/x", "GET,HEAD"),
            ("/healthz", "GET,HEAD"),
            ("/readyz", "GET,HEAD"),
            ("/metrics", "GET,HEAD"),
        ] {
            for method in [Method::DELETE, Method::PATCH, Method::OPTIONS, "BREW".parse().unwrap()] {
                let reply = memory.call(method, path).header("x-api-key", ACME).send().await;
                let problem = reply.is_problem(405, "does not take this method; Allow lists those it takes");
                assert_eq!(
                    (&problem["error"], reply.header("allow")),
                    (&json!("method_not_allowed"), Some(allow))
                );
            }
        }
        assert_eq!((memory.rows("rate_budgets"), memory.rows("idempotency_records")), (0, 0));
    }
}
