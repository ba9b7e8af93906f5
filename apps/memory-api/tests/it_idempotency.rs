//! A batch that is sent again is the same batch: over real HTTP and on both stores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::collections::BTreeSet;
use std::time::Duration;

use admit::idempotency::{Claim, RecordKey, Terms};
use admit::{Clock, IdempotencyStore, Now};
use memory_api::batch::Batch;
use serde_json::{Value, json};
use service::{ACME, ACME_2, BETA, Memory, Reply, batch};
use sha2::{Digest, Sha256};

const SECOND: Duration = Duration::from_secs(1);

/// Sends a body, and a second later the next may be sent.
async fn ingest(memory: &Memory, body: &str) -> Reply {
    let reply = memory.ingest(ACME, body.to_owned()).send().await;
    memory.advance(SECOND);
    reply
}

/// All headers that a replay repeats, and so all but those of this one exchange.
fn kept_headers(reply: &Reply) -> BTreeSet<(String, Vec<u8>)> {
    let of_the_exchange =
        ["date", "x-correlation-id", "ratelimit", "ratelimit-policy", "idempotent-replayed"];
    let headers = reply.headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    headers.filter(|(name, _)| !of_the_exchange.contains(&name.as_str())).collect()
}

on_both_stores! {
    async fn the_same_id_with_other_content_is_422(memory) {
        let first = ingest(&memory, &batch("id_a", "a note").to_string()).await;
        let mut others =
            vec![batch("id_a", "another note"), batch("id_a", "a note"), batch("id_a", "a note")];
        others[1]["project"] = "kitchen".into();
        others[2]["items"][0]["tags"] = json!(["water"]);
        for other in others {
            let refused = ingest(&memory, &other.to_string()).await;
            let problem = refused.is_problem(422, "used before, with another payload");
            assert_eq!(problem["error"], "idempotency_key_reused");
            assert_eq!(refused.header("retry-after"), None);
        }
        // What was refused changed nothing: the first answer is still the answer, and there is one job.
        let again = ingest(&memory, &batch("id_a", "a note").to_string()).await;
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        assert_eq!((memory.rows("jobs"), memory.rows("idempotency_records")), (1, 1));
        // Nor did it cost of the hour.
        let next = ingest(&memory, &batch("id_b", "a note").to_string()).await;
        assert!(next.is(202).header("ratelimit").unwrap().starts_with("\"ingest\";r=98;"), "{next:?}");
    }

    async fn a_replay_is_the_first_answer_byte_for_byte(memory) {
        let body = batch("id_a", "a note").to_string();
        let first = ingest(&memory, &body).await;
        let job = first.job_id();
        let expected = format!("{{\"job_id\":\"{job}\",\"ingest_id\":\"id_a\",\"status\":\"queued\"}}");
        assert_eq!(first.is(202).text(), expected);
        assert_eq!(first.header("content-type"), Some("application/json"));
        assert_eq!(first.header("location"), Some(format!("/memory/jobs/{job}").as_str()));
        assert_eq!(first.header("idempotent-replayed"), None);

        // It says what it said first, also when the job is done.
        memory.done(ACME, &first.job_id()).await;
        for key in [ACME, ACME_2] {
            let again = memory.ingest(key, body.clone()).send().await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            assert_eq!(kept_headers(&again), kept_headers(&first));
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
            assert_ne!(again.header("x-correlation-id"), first.header("x-correlation-id"));
        }
        assert_eq!((memory.rows("jobs"), memory.rows("items")), (1, 1));
    }

    async fn a_batch_without_an_id_is_known_by_its_content(memory) {
        let canonical = r#"{"items":[{"kind":"note","tags":["é","b"],"text":"a note"}],"project":"garden"}"#;
        let digest: String = Sha256::digest(canonical).iter().map(|byte| format!("{byte:02x}")).collect();
        let id = format!("jcs1-sha256:{digest}");
        let first = ingest(&memory, canonical).await;
        assert_eq!(first.is(202).json()["ingest_id"], id.as_str());
        assert_eq!(first.header("idempotency-key"), Some(format!("\"{id}\"").as_str()));

        // White space, the order of members and escapes are no content; and who sends the id that was told, repeats.
        let same = [
            "{\n \"project\" : \"garden\", \"items\":[ ".to_owned()
                + "{\"text\":\"a note\", \"tags\": [\"é\" , \"b\"],\t\"kind\":\"note\"}]} ",
            r#"{"project":"\u0067arden","items":[{"kind":"note","text":"a note","tags":["\u00E9","b"]}]}"#
                .to_owned(),
            canonical.replacen('{', &format!("{{\"ingest_id\":\"{id}\","), 1),
        ];
        for body in same {
            let again = ingest(&memory, &body).await;
            assert_eq!((again.is(202).job_id(), again.text()), (first.job_id(), first.text()), "{body}");
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
        }
        // The order of lists is content, and so is the kind of an accent.
        for (old, new) in [("[\"é\",\"b\"]", "[\"b\",\"é\"]"), ("é", "e\u{301}"), ("a note", "a note ")] {
            let other = ingest(&memory, &canonical.replace(old, new)).await;
            assert_ne!(other.is(202).json()["ingest_id"], id.as_str());
            assert_ne!(other.job_id(), first.job_id());
        }
        let told = canonical.replacen('{', &format!("{{\"ingest_id\":\"{id}\","), 1);
        ingest(&memory, &told.replace("a note", "no note")).await.is_problem(422, "another payload");
        // Another tenant's same content is another batch with the same id.
        let beta = memory.ingest(BETA, canonical).send().await;
        assert_eq!(beta.is(202).json()["ingest_id"], id.as_str());
        assert_ne!(beta.job_id(), first.job_id());
    }

    async fn twenty_at_once_are_one_job(memory) {
        let mut memory = memory;
        memory.restart(&[("MEM_RATE_LIMIT_BURST", "1000")]).await;
        let bodies =
            [batch("id_a", "a note"), json!({"project": "x", "items": [{"kind": "n", "text": "t"}]})];
        for body in bodies {
            let jobs = memory.rows("jobs");
            let requests = (0..20).map(|_| memory.ingest(ACME, body.to_string()).send());
            let replies = futures::future::join_all(requests).await;
            let ids: BTreeSet<_> = replies.iter().map(|reply| reply.is(202).job_id()).collect();
            assert_eq!(ids.len(), 1, "{ids:?}");
            let first = replies.iter().filter(|reply| reply.header("idempotent-replayed").is_none());
            assert_eq!(first.count(), 1, "one ran, and the others are replays");
            assert_eq!(memory.rows("jobs"), jobs + 1);
        }
        // Forty requests, of which two ran: only those cost of the hour.
        let next = memory.ingest_id(ACME, "id_b").send().await;
        assert!(next.is(202).header("ratelimit").unwrap().starts_with("\"ingest\";r=97;"), "{next:?}");
    }

    async fn an_id_in_flight_is_waited_for_and_then_409(memory) {
        let store = memory.store().await;
        let body = batch("id_a", "a note").to_string();
        let fingerprint = Batch::parse(body.as_bytes()).unwrap().fingerprint;
        let key = RecordKey::new("acme", "POST", "/memory/ingest", "id_a");
        let now = || Now::At(memory.clock.now());
        let Claim::Run(ticket) = store.claim(&key, &fingerprint, &Terms::default(), now()).await.unwrap()
        else {
            panic!("the id is free");
        };

        let refused = memory.ingest(ACME, body.clone()).send().await;
        let problem = refused.is_problem(409, "is running");
        assert_eq!(problem["error"], "idempotency_in_flight");
        assert_eq!((refused.header("retry-after"), &problem["retry_after_seconds"]), (Some("1"), &json!(1)));
        let other = memory.ingest(ACME, batch("id_a", "another note").to_string()).send().await;
        other.is_problem(422, "another payload");
        assert_eq!(memory.rows("jobs"), 0);

        // A request that waits when the other ends without an answer runs itself.
        let waiting = memory.ingest(ACME, body.clone()).send();
        let release = async { store.release(&ticket, now()).await.unwrap() };
        let (ran, ()) = tokio::join!(waiting, release);
        assert_eq!(ran.is(202).header("idempotent-replayed"), None);
        assert_eq!(memory.rows("jobs"), 1);
        let left = ran.header("ratelimit").unwrap();
        assert!(left.starts_with("\"ingest\";r=99;"), "409 and 422 cost nothing of the hour: {left}");
    }

    async fn an_id_whose_holder_died_is_free_after_its_lease(memory) {
        let store = memory.store().await;
        let body = batch("id_a", "a note").to_string();
        let fingerprint = Batch::parse(body.as_bytes()).unwrap().fingerprint;
        let key = RecordKey::new("acme", "POST", "/memory/ingest", "id_a");
        let terms = Terms { lease: 10 * SECOND, ..Terms::default() };
        let now = || Now::At(memory.clock.now());
        let Claim::Run(ticket) = store.claim(&key, &fingerprint, &terms, now()).await.unwrap() else {
            panic!("the id is free");
        };
        memory.advance(10 * SECOND);
        let ran = memory.ingest(ACME, body.clone()).send().await;
        assert_eq!(ran.is(202).header("idempotent-replayed"), None);
        assert!(store.release(&ticket, now()).await.is_err(), "the former holder has no more say");
        assert_eq!(memory.ingest(ACME, body).send().await.is(202).job_id(), ran.job_id());
        assert_eq!(memory.rows("jobs"), 1);
    }

    async fn ids_are_any_text_of_1_to_255_characters(memory) {
        let ids: [String; 8] = [
            "x".into(),
            "a".repeat(255),
            "é".repeat(255),
            "🦀".repeat(255),
            " \t\n\"\\/ ' OR 1=1 --".into(),
            "\u{1}\u{7f}\u{200b}\u{fffd}".into(),
            "é".repeat(254),
            "é".repeat(253) + "e\u{301}", // No text is folded into another.
        ];
        let mut jobs = BTreeSet::new();
        for id in ids {
            let body = batch(&id, "a note").to_string();
            let first = ingest(&memory, &body).await;
            assert_eq!(first.is(202).json()["ingest_id"], id.as_str());
            let again = ingest(&memory, &body).await;
            assert_eq!(again.is(202).text(), first.text());
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
            let location = first.header("location").unwrap();
            let job: Value = memory.get(location, ACME).send().await.is(200).json();
            assert_eq!(job["ingest_id"], id.as_str());
            assert!(jobs.insert(first.job_id()));
        }
        assert_eq!(memory.rows("jobs"), 8);
    }
}
