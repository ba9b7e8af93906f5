//! The JSON schema of the policy file, against the parser.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;

use admit_server::policy::{Policy, SCHEMA, STARTER};
use serde_json::Value;

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

fn json(toml: &str) -> Value {
    serde_json::to_value(toml.parse::<toml::Table>().unwrap()).unwrap()
}

/// The policies in a guide: its TOML blocks that the parser takes.
fn policies_of(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.map(|(block, _)| block.to_owned()).filter(|block| Policy::parse("guide", block).is_ok()).collect()
}

#[test]
fn every_policy_that_is_shown_is_valid() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let pages =
        std::fs::read_dir(guide).unwrap().map(|page| page.unwrap().path()).filter(|page| page.is_file());
    let shown: Vec<String> = pages.flat_map(|page| policies_of(&page)).collect();
    assert!(!shown.is_empty());
    for policy in shown.iter().map(String::as_str).chain([STARTER]) {
        let wrong: Vec<String> =
            validator.iter_errors(&json(policy)).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{wrong:?} in\n{policy}");
    }
}

/// The parser tells all members that a section takes when it finds one that is like none of them.
#[test]
fn every_member_of_the_parser_is_in_the_schema_and_no_other_is() {
    let schema = schema();
    for (section, place, text) in [
        ("", "", "~ = 1"),
        ("budget", "budgets.x", "[budgets.x]\nrate = \"1/s\"\nby = \"ip\"\n~ = 1"),
        (
            "cost_table",
            "budgets.x.cost",
            "[budgets.x]\nrate = \"1/s\"\nby = \"ip\"\ncost = { from = \"header:a\", ~ = 1 }",
        ),
        ("upstream_limits", "upstream_limits", "upstream = \"http://a\"\n[upstream_limits]\n~ = 1"),
        ("tls", "tls", "tls = { certificate = \"a\", key = \"b\", ~ = 1 }"),
        ("route", "routes", "[[routes]]\nmatch = \"GET /\"\n~ = 1"),
        (
            "idempotency",
            "routes.idempotency",
            "[[routes]]\nmatch = \"GET /\"\nidempotency = { by = \"ip\", key = \"header\", ~ = 1 }",
        ),
        ("descriptor", "descriptors", "[[descriptors]]\nentries = { a = \"*\" }\nbudgets = []\n~ = 1"),
    ] {
        let policy = text.replace('~', "\"0\"");
        let errors = Policy::parse("test", &policy).unwrap_err();
        let [problem] = errors.problems() else { panic!("{place}: {:?}", errors.problems()) };
        let known = problem.help().unwrap().strip_prefix("it takes ").unwrap();
        let known: BTreeSet<&str> = known.split(", ").collect();
        let object = if section.is_empty() { &schema } else { &schema["$defs"][section] };
        let members = object["properties"].as_object().unwrap();
        assert_eq!(members.keys().map(String::as_str).collect::<BTreeSet<_>>(), known, "{place}");
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(!validator.is_valid(&json(&policy)), "an unknown member of {place} is not valid");
        assert!(validator.is_valid(&json(&text.replace(", ~ = 1", "").replace("~ = 1", ""))), "{place}");
    }
}

/// The guide has a row for each member, so that nobody has to read the schema.
#[test]
fn every_member_is_in_the_guide() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/gateway.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let schema = schema();
    let sections =
        ["budget", "route", "idempotency", "tls", "upstream_limits"].map(|name| &schema["$defs"][name]);
    for section in sections.into_iter().chain([&schema]) {
        for name in section["properties"].as_object().unwrap().keys() {
            let is_there =
                [format!("`{name}`"), format!("{name} = "), format!("[{name}."), format!("[[{name}]]")];
            assert!(is_there.iter().any(|form| guide.contains(form)), "{name}");
        }
    }
}
