//! What is taken in is found again, by its tenant alone: over real HTTP and on both stores.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod service;

use std::collections::BTreeSet;
use std::time::Duration;

use memory_api::cursor::Binding;
use memory_api::storage::{ItemName, Position};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use service::{ACME, ACME_2, BETA, GAMMA, Memory};
use sha2::{Digest, Sha256};

const SECOND: Duration = Duration::from_secs(1);

/// Takes a batch in, and waits until it can be found.
async fn learn(memory: &Memory, key: &str, project: &str, items: Value) -> String {
    memory.advance(60 * SECOND); // For the hour and the second.
    let body = json!({"project": project, "items": items}).to_string();
    let job = memory.ingest(key, body).send().await.is(202).job_id();
    memory.done(key, &job).await;
    job
}

fn notes(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"kind": "note", "text": text})).collect()
}

async fn page(memory: &Memory, key: &str, path: &str) -> Value {
    memory.advance(60 * SECOND);
    memory.get(path, key).send().await.is(200).json()
}

fn texts(page: &Value) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item["text"].as_str().unwrap().to_owned()).collect()
}

async fn search(memory: &Memory, key: &str, q: &str) -> Vec<String> {
    let q = utf8_percent_encode(q, NON_ALPHANUMERIC);
    texts(&page(memory, key, &format!("/memory/query?limit=100&q={q}")).await)
}

/// All pages of a list whose rows stand in the member `list`. Between two pages `meanwhile` is called.
async fn all_pages(memory: &Memory, path: &str, list: &str, mut meanwhile: impl AsyncFnMut()) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    for _ in 0..100 {
        let read = page(memory, ACME, &format!("{path}{cursor}")).await;
        rows.extend(read[list].as_array().unwrap().iter().cloned());
        let Some(next) = read["next_cursor"].as_str() else { return rows };
        cursor = format!("&cursor={next}");
        meanwhile().await;
    }
    panic!("a hundred pages and no end");
}

on_both_stores! {
    async fn a_batch_becomes_searchable(memory) {
        let items = json!([
            {"kind": "note", "text": "Water the tomatoes at dawn", "tags": ["Vegetables", "daily"]},
            {"kind": "skill", "text": "Prune roses in March"},
        ]);
        let body = json!({"ingest_id": "nightly-7", "project": "garden", "items": items}).to_string();
        let accepted = memory.ingest(ACME, body).send().await;
        let job_id = accepted.is(202).job_id();
        memory.done(ACME, &job_id).await;

        let job = memory.get(accepted.header("location").unwrap(), ACME_2).send().await.is(200).json();
        for (member, value) in [
            ("job_id", json!(job_id)),
            ("ingest_id", json!("nightly-7")),
            ("project", json!("garden")),
            ("status", json!("done")),
            ("items", json!(2)),
            ("items_indexed", json!(2)),
            ("failures", json!(0)),
            ("created_at", json!("2026-01-01T00:00:00Z")),
        ] {
            assert_eq!(job[member], value, "{member} of {job}");
        }
        for member in ["started_at", "finished_at"] {
            assert!(job[member].as_str().unwrap().starts_with("2026-01-01T00:00:"), "{member} of {job}");
        }

        let found = page(&memory, ACME, "/memory/query?q=tomatoes").await;
        let created_at = found["items"][0]["created_at"].clone();
        assert!(created_at.as_str().unwrap().starts_with("2026-01-01T00:00:"));
        let expected = json!({
            "items": [{
                "id": format!("{job_id}.0"), "project": "garden", "kind": "note",
                "text": "Water the tomatoes at dawn", "tags": ["Vegetables", "daily"], "created_at": created_at,
            }],
            "next_cursor": null,
        });
        assert_eq!(found, expected);
        // By any of its words and tags, whatever their case and ending; by all of them together, and by no others.
        for q in ["WATER", "tomato", "watering", "vegetables", "dawn daily", "at", "tomatoes, water!"] {
            assert_eq!(search(&memory, ACME, q).await, ["Water the tomatoes at dawn"], "{q}");
        }
        for q in ["tomatoes roses", "garden", "note", "nightly", "wat"] {
            assert_eq!(search(&memory, ACME, q).await, [""; 0], "{q}");
        }
        // Without words, all of it, the newest first.
        for path in ["/memory/query", "/memory/query?q=", "/memory/query?q=%20"] {
            let all = page(&memory, ACME, path).await;
            assert_eq!(texts(&all), ["Prune roses in March", "Water the tomatoes at dawn"]);
            assert_eq!(all["items"][0]["tags"], json!([]));
        }
    }

    async fn what_says_it_more_often_comes_first(memory) {
        let others = "tea and cake and jam and bread and milk and salt";
        let often = "knit a scarf, knit a hat, knit a sock";
        let texts = [&format!("knit {others}"), often, "knit a scarf and then a hat", others];
        learn(&memory, ACME, "wool", notes(&texts)).await;
        let found = search(&memory, ACME, "knit").await;
        assert_eq!((found.len(), found[0].as_str()), (3, often));
        assert_eq!(search(&memory, ACME, "scarf hat").await.len(), 2);
        // Of equals the newer comes first.
        learn(&memory, ACME, "wool", notes(&["felt it (1)"])).await;
        learn(&memory, ACME, "wool", notes(&["felt it (2)", "felt it (3)"])).await;
        assert_eq!(search(&memory, ACME, "felt").await, ["felt it (3)", "felt it (2)", "felt it (1)"]);
    }

    async fn filters_narrow_a_search(memory) {
        let items = |text: &str| json!([{"kind": "note", "text": text}, {"kind": "skill", "text": text}]);
        learn(&memory, ACME, "garden", items("water in the garden")).await;
        learn(&memory, ACME, "Küche & Bad", items("water in the kitchen")).await;
        for (filter, count) in [
            ("q=water", 4),
            ("q=water&project=garden", 2),
            ("q=water&project=K%C3%BCche+%26%20Bad", 2),
            ("q=water&kind=skill", 2),
            ("q=kitchen&project=garden", 0),
            ("project=garden&kind=note", 1),
            ("project=GARDEN", 0),
            ("kind=song", 0),
            ("limit=3", 3),
        ] {
            let found = page(&memory, ACME, &format!("/memory/query?{filter}")).await;
            assert_eq!(texts(&found).len(), count, "{filter}");
            for item in found["items"].as_array().unwrap() {
                assert!(!filter.contains("project=garden") || item["project"] == "garden");
                assert!(!filter.contains("kind=skill") || item["kind"] == "skill");
            }
        }
    }

    /// Pages were once in the order of ranks that moved with every item that arrived, so that some items stood on two
    /// pages and others on none.
    async fn pages_have_no_gaps_and_no_repeats_while_items_arrive(memory) {
        let mut here = BTreeSet::new();
        for i in 0..12 {
            // Some say the one word more often, some the other, at different lengths.
            let (knits, sews, others) = (1 + i % 3, 1 + (i + i / 3) % 3, i % 4);
            let words = ["knit ".repeat(knits), "sew ".repeat(sews), "button ".repeat(4 * others)].concat();
            here.insert(format!("{words}number{i}"));
        }
        let here_texts: Vec<_> = here.iter().map(String::as_str).collect();
        learn(&memory, ACME, "wool", notes(&here_texts)).await;
        for path in
            ["/memory/query?limit=2", "/memory/query?limit=2&q=knit", "/memory/query?limit=1&q=sew+knit"]
        {
            let mut arrived = 0;
            let rows = all_pages(&memory, &format!("{path}&project=wool"), "items", async || {
                arrived += 1;
                // They make the one word common, then the other, and the average item longer.
                let word = if arrived % 2 == 0 { "sew " } else { "knit " };
                let long = format!("{}{}", word.repeat(arrived), "thread ".repeat(20 * arrived));
                let both = format!("knit sew {}", "wool ".repeat(arrived));
                learn(&memory, ACME, "wool", notes(&[&long, &long, &long, &both])).await;
                learn(&memory, BETA, "wool", notes(&[word; 40])).await;
            })
            .await;
            let ids: BTreeSet<_> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
            assert_eq!(ids.len(), rows.len(), "{path}: no item stands twice");
            let texts: BTreeSet<_> =
                rows.iter().map(|row| row["text"].as_str().unwrap().to_owned()).collect();
            let gaps: Vec<_> = here.difference(&texts).collect();
            assert_eq!(gaps, [""; 0], "{path}: items that were there before the first page");
            assert!(arrived > 4, "{arrived}");
        }
    }

    async fn any_text_can_be_searched_for(memory) {
        let odd = [
            "\"quoted\" 'words' and a back\\slash",
            "AND OR NOT NEAR(a b, 2) are words here",
            "col:umn -minus +plus ^hat *star {brace} [bracket] (paren) | & ! <-> :*",
            "Robert'); DROP TABLE items; --",
            "Crème brûlée, naïve façade, Ångström",
            "日本語 のテキスト",
            "crab 🦀 cake",
            "percent %00 and \\u0000 and \u{1}\u{7f}\u{200b}",
            "İstanbul straße ΣΊΣΥΦΟΣ",
            "2026-01-01T00:00:00Z 1.5e10 0x1F user@example.com https://example.com/a?b=c#d",
        ];
        learn(&memory, ACME, "odd", notes(&odd)).await;
        for text in odd {
            let found = search(&memory, ACME, text).await;
            assert!(found.contains(&text.to_owned()), "{text:?} is not found by itself, but {found:?}");
        }
        for (q, text) in
            [("creme BRULEE", odd[4]), ("istanbul", odd[8]), ("drop table", odd[3]), ("near", odd[1])]
        {
            assert_eq!(search(&memory, ACME, q).await, [text], "{q}");
        }
        // What has no words finds nothing; and no operator is one.
        for q in [
            "\"",
            "\"\"\"",
            "*",
            "'",
            "🦀",
            "\0",
            "-",
            "(",
            "NEAR(",
            "cra* cak*",
            "owner:x",
            "\" OR owner : \"",
            "crab -cake\"",
            "crab OR quoted",
            "{owner words} : crab",
            "!crab & zzz",
            "\u{fffd}\u{301}",
        ] {
            let found = search(&memory, ACME, q).await;
            assert!(found.len() <= 1, "{q:?} finds {found:?}");
        }
        let many = "crab ".repeat(200);
        assert_eq!(search(&memory, ACME, &many).await, [odd[6]]);
        assert_eq!(search(&memory, ACME, &"é".repeat(1_000)).await, [""; 0]);
        assert_eq!(memory.rows("items"), odd.len() as i64);
    }

    async fn projects_and_skills_are_listed(memory) {
        assert_eq!(
            page(&memory, ACME, "/memory/projects").await,
            json!({"projects": [], "next_cursor": null})
        );
        assert_eq!(page(&memory, ACME, "/memory/skills").await, json!({"skills": [], "next_cursor": null}));
        let skill = |text: &str| json!({"kind": "skill", "text": text});
        let items = json!([skill("knit"), {"kind": "note", "text": "sew"}, skill("knit"), skill("darn")]);
        learn(&memory, ACME, "wool", items).await;
        learn(&memory, ACME, "garden", json!([skill("prune"), skill("knit")])).await;

        let projects = page(&memory, ACME, "/memory/projects").await;
        let named: Vec<_> =
            projects["projects"].as_array().unwrap().iter().map(|p| (&p["name"], &p["items"])).collect();
        assert_eq!(named, [(&json!("garden"), &json!(2)), (&json!("wool"), &json!(4))]);
        assert!(projects["projects"][0]["last_item_at"].as_str().unwrap().starts_with("2026-01-01T00:0"));

        let skills = page(&memory, ACME, "/memory/skills").await;
        let skills = skills["skills"].as_array().unwrap().clone();
        let counted: BTreeSet<_> = skills
            .iter()
            .map(|s| (s["text"].as_str().unwrap(), s["times_learnt"].as_i64().unwrap()))
            .collect();
        assert_eq!(counted, BTreeSet::from([("knit", 3), ("darn", 1), ("prune", 1)]));
        assert_eq!(skills[0]["text"], "prune", "the newest skill comes first");
        let knit = skills.iter().find(|skill| skill["text"] == "knit").unwrap();
        assert!(knit["first_learnt_at"].as_str() < knit["last_learnt_at"].as_str(), "{knit}");

        // In pages, while more arrive.
        for i in 0..7 {
            learn(&memory, ACME, &format!("project-{i}"), json!([skill(&format!("skill-{i}"))])).await;
        }
        for (path, list, name, count) in [
            ("/memory/projects?limit=2", "projects", "name", 9),
            ("/memory/skills?limit=2", "skills", "text", 10),
        ] {
            let mut arrived = 0;
            let rows = all_pages(&memory, path, list, async || {
                arrived += 1;
                let known = json!([skill("knit"), skill(&format!("{list}-{arrived}"))]);
                learn(&memory, ACME, "a-new-one", known).await;
            })
            .await;
            let names: BTreeSet<_> = rows.iter().map(|row| row[name].as_str().unwrap()).collect();
            assert_eq!(names.len(), rows.len(), "{path}: nothing stands twice");
            assert!(rows.len() >= count, "{path}: {names:?}");
            assert!(names.contains(if list == "projects" { "wool" } else { "skill-6" }), "{names:?}");
        }
    }

    // Cursors held the numbers of rows, and so told how much all tenants together had stored.
    async fn a_cursor_tells_nothing_of_what_others_store(memory) {
        let skill = |text: &str| json!({"kind": "skill", "text": text});
        learn(&memory, BETA, "theirs", json!([skill("a"), skill("b"), skill("c")])).await;
        learn(&memory, ACME, "ours", json!([skill("sew")])).await;
        let job_id = learn(&memory, ACME, "ours", json!([skill("sew"), skill("knit")])).await;
        let cursor = async |path: &str| page(&memory, ACME, path).await["next_cursor"].as_str().unwrap().to_owned();

        let skills = cursor("/memory/skills?limit=1").await;
        let knit = Position::Skill(Sha256::digest("knit").into());
        assert_eq!(Binding::of(&["skills", "acme"]).decode(&skills), Ok(knit));
        let items = cursor("/memory/query?limit=1").await;
        let last = ItemName { job_id: job_id.parse().unwrap(), position: 1 };
        let end = Position::Search { last, after: last };
        assert_eq!(Binding::of(&["query", "acme", "", "", ""]).decode(&items), Ok(end));
    }

    async fn tenants_never_see_each_other(memory) {
        let items = |tenant: &str| {
            json!([
                {"kind": "skill", "text": format!("the secret of {tenant}"), "tags": [tenant]},
                {"kind": "note", "text": "common words"},
            ])
        };
        let mut jobs = Vec::new();
        for (key, tenant) in [(ACME, "acme"), (BETA, "beta"), (GAMMA, "gamma")] {
            let project = format!("project of {tenant}");
            jobs.push((key, tenant, learn(&memory, key, &project, items(tenant)).await));
        }
        for (key, tenant, own) in &jobs {
            assert_eq!(search(&memory, key, "secret").await, [format!("the secret of {tenant}")]);
            assert_eq!(search(&memory, key, "common words").await, ["common words"]);
            assert_eq!(search(&memory, key, "").await.len(), 2);
            let projects = page(&memory, key, "/memory/projects").await;
            assert_eq!(projects["projects"].as_array().unwrap().len(), 1);
            assert_eq!(projects["projects"][0]["name"], format!("project of {tenant}"));
            let skills = page(&memory, key, "/memory/skills").await;
            assert_eq!(skills["skills"].as_array().unwrap().len(), 1);
            for (_, other, job) in &jobs {
                let reply = memory.get(&format!("/memory/jobs/{job}"), key).send().await;
                if job == own {
                    assert_eq!(reply.is(200).json()["project"], format!("project of {tenant}"));
                    continue;
                }
                assert_eq!(reply.is_problem(404, "no such job")["error"], "job_not_found");
                assert_eq!(search(&memory, key, other).await, [""; 0]);
                let theirs = page(&memory, key, &format!("/memory/query?project=project+of+{other}")).await;
                assert_eq!(texts(&theirs), [""; 0]);
            }
        }
        // Keys of one tenant see the same.
        assert_eq!(search(&memory, ACME_2, "secret").await, ["the secret of acme"]);
    }
}
