//! What may be shown of a file: the lines around a mistake go to a terminal, a log and `/status`.
//!
//! Passwords in URLs are hidden, and what stands where a hash belongs: whoever takes the one for the other
//! writes a token or a key there. Each byte is a star, so that places stay. A file with a mistake in its
//! syntax has no tree to go by, so this goes by the text, and hides too much rather than too little.

/// How like the name of a member with hashes a misspelt one is, from 0 to 1.
const ALIKE: f64 = 0.75;

/// Members whose values are secrets if they are not hashes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hides {
    /// Those of a policy that hold hashes, and names like theirs.
    LikeTokens,
    /// All but these, as in a file of keys.
    AllBut(&'static [&'static str]),
}

impl Hides {
    /// The text with stars in the place of what is hidden.
    pub(super) fn shown(self, text: &str) -> String {
        let text = without_passwords(text);
        let mut shown = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(equals) = rest.find('=') {
            let (before, behind) = rest.split_at(equals + 1);
            shown.push_str(before);
            let length = if self.hides(name(before)) { value_length(behind) } else { 0 };
            shown.push_str(&starred(&behind[..length]));
            rest = &behind[length..];
        }
        shown + rest
    }

    fn hides(self, name: &str) -> bool {
        match self {
            Self::LikeTokens => {
                name.to_ascii_lowercase().contains("password")
                    || ["decision_tokens", "admin_tokens", "sha256"].iter().any(|known| {
                        strsim::normalized_damerau_levenshtein(known, &name.to_ascii_lowercase()) >= ALIKE
                    })
            }
            Self::AllBut(known) => !name.is_empty() && !known.contains(&name),
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The last name before an equals sign.
fn name(before: &str) -> &str {
    let before = before.trim_end_matches(|c: char| c == '=' || c == '"' || c == '\'' || c.is_whitespace());
    let start =
        before.rfind(|c| !is_name(c)).map_or(0, |i| i + before[i..].chars().next().map_or(1, char::len_utf8));
    &before[start..]
}

/// How far the value goes: to the end of its line, and on as long as a list is open, up to the next member.
fn value_length(behind: &str) -> usize {
    let (mut length, mut is_open) = (0, false);
    for line in behind.split_inclusive('\n') {
        let begins_member = line.split_once('=').is_some_and(|(name, _)| {
            let name = name.trim();
            !name.is_empty()
                && name.chars().all(|c| is_name(c) || ".\"'".contains(c))
                && !name.starts_with(['"', '\''])
        });
        if length > 0 && (!is_open || begins_member || line.starts_with("[[")) {
            break;
        }
        let quoted = line.split(['"', '\'']).step_by(2); // What stands outside of quotes.
        let outside: String = quoted.collect();
        if length == 0 {
            is_open = outside.trim_start().starts_with('[');
            // A table in one line goes on behind the comma.
            if let Some(end) = (!is_open).then(|| end_in_line(line)).flatten() {
                return end;
            }
        }
        is_open &= !outside.contains(']');
        length += line.len();
    }
    length
}

/// Where a value ends that has others behind it in its line.
fn end_in_line(line: &str) -> Option<usize> {
    let mut quote = None;
    for (i, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == ',' || c == '}' => return Some(i),
            None => {}
        }
    }
    None
}

/// With stars for all words but hashes.
fn starred(value: &str) -> String {
    let is_sign = |c: char| c.is_whitespace() || "[]\"',{}#".contains(c);
    let mut shown = String::with_capacity(value.len());
    for word in value.split_inclusive(is_sign) {
        let (inner, sign) = match word.char_indices().next_back() {
            Some((i, c)) if is_sign(c) => word.split_at(i),
            _ => (word, ""),
        };
        let is_hash = inner.len() == 64 && inner.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_hash {
            true => shown.push_str(inner),
            false => shown.extend(std::iter::repeat_n('*', inner.len())),
        }
        shown.push_str(sign);
    }
    shown
}

/// The text with a star for each byte of a password in a URL, or in what was meant as one: from a colon
/// behind the scheme to the last `@`, whatever signs the password has.
pub(crate) fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for word in text.split_inclusive(|c: char| c.is_whitespace() || c == '"') {
        let authority = word.find("://").map_or(0, |scheme| scheme + 3);
        let password = word.rfind('@').and_then(|at| {
            let colon = authority + word.get(authority..at)?.find(':')?;
            Some(colon + 1..at)
        });
        match password {
            Some(password) => {
                shown.push_str(&word[..password.start]);
                shown.extend(std::iter::repeat_n('*', password.len()));
                shown.push_str(&word[password.end..]);
            }
            None => shown.push_str(word),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown_and_places_stay() {
        let text = "store = \"postgres://a:s3:cr@t@db/x\" # http://b@c\nupstream = 'http://d:e'";
        let shown = "store = \"postgres://a:*******@db/x\" # http://b@c\nupstream = 'http://d:e'";
        assert_eq!(Hides::LikeTokens.shown(text), shown);
        for (text, shown) in [
            ("://x:é@y", "://x:**@y"),
            // They were shown: the signs end an authority, and what is no URL was not looked at.
            ("postgres://u:s3/cr?t@db/x", "postgres://u:*******@db/x"),
            ("postgres:/u:s3@db", "postgres:*****@db"),
            ("\"http://u:s3@a\" is no", "\"http://u:**@a\" is no"),
            ("http://a:80/b@c d", "http://a:****@c d"),
            ("'const:a' ann@x:1", "'const:a' ann@x:1"),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
        let pairs = Hides::LikeTokens.shown("store = \"host=db password=s3cret\"\nlisten = \"a\"");
        assert_eq!(pairs, "store = \"host=db password=******\"\nlisten = \"a\"");
    }

    /// A token that was written in the place of its hash stood in the log and in `/status`.
    #[test]
    fn what_stands_in_the_place_of_a_hash_is_not_shown() {
        let hash = "20fab32e41ad80ea52ceb4cff03fb2f10cf5a96bd28f7e5f3ffc5bb5dfb2bd8d";
        for text in [
            "decision_tokens = [\"s3cret\", 's3cret+s3cret==']\nlisten = \"a\"",
            "decision_tokens = \"s3cret\"\n[budgets.x]\nrate = \"1/hour\"",
            "admin_tokens = [\n  \"s3cret\", # s3cret\n  s3cret\n]\n[budgets.x]\nrate = \"1/hour\"",
            "admin_tokens = s3cret s3cret==\nlisten = \"a\"",
            "decisions_tokens = [\"s3cret\nlisten = \"a\"",
            "\"decision_tokens\"=[\"s3cret\"",
        ] {
            let shown = Hides::LikeTokens.shown(text);
            assert!(!shown.contains("s3cret") && shown.contains('*') && shown.len() == text.len(), "{shown}");
            let rest = text.split_once("listen").or(text.split_once("[budgets")).map_or("", |(_, rest)| rest);
            assert!(shown.ends_with(rest), "{shown}");
        }
        let keys = Hides::AllBut(&["tenant", "keys"]);
        for text in [
            "[[keys]]\nsha256 = \"s3cret\"\ntenant = \"acme\"",
            "[[keys]]\nkey = \"s3cret\"\ntenant = \"acme\"",
            "keys = [{ sha256 = \"s3cret,s3cret\", tenant = \"acme\" }]",
        ] {
            let shown = keys.shown(text);
            assert!(!shown.contains("s3cret") && shown.contains("tenant = \"acme\""), "{shown}");
        }
        for whole in [
            format!("decision_tokens = [\"{hash}\"]\nkeys = \"keys.toml\""),
            "[budgets.tokens]\nrate = \"1/hour\"\ncost = { from = \"json:/max_tokens\", otherwise = 1 }"
                .to_owned(),
            "idempotency = { key = \"header\" }".to_owned(),
        ] {
            assert_eq!(Hides::LikeTokens.shown(&whole), whole);
        }
    }
}
