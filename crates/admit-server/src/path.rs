//! Paths as routes see them.

use percent_encoding::percent_decode_str;

/// A path in one form whatever a client wrote, so that no other spelling of it passes by its route. The upstream gets the
/// path as the client wrote it, so the form is the one that services may give it, taken together: percent signs are undone
/// in whichever case, parameters behind a semicolon are left out (RFC 3986, section 3.3), repeated slashes are one, and a
/// last one is none.
///
/// ```
/// # use admit_server::path::Reading;
/// assert_eq!(Reading::of("/v1/%6Aobs;v=1//7/")?.path, "/v1/jobs/7");
/// assert!(Reading::of("/v1/../admin").is_err());
/// # Ok::<(), admit_server::path::AmbiguousPath>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Its form. A slash within a segment is `%2F`, a backslash `%5C`, and a percent sign `%25`.
    pub path: String,
    /// The same for a service that takes slashes within segments, and backslashes, for those between them; nothing if there
    /// are none.
    pub split: Option<String>,
}

/// A path that services read in ways that have nothing in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmbiguousPath {
    /// Clients follow `.` and `..` before they send (RFC 3986, section 5.2.4). Some services do it after them, some do not.
    #[error("the path has a segment . or .., in whichever spelling; send it as it is without")]
    Dots,
    /// Some services end the path there.
    #[error("the path has a control character")]
    Control,
}

impl Reading {
    /// Reads the path of a request.
    ///
    /// # Errors
    /// [`AmbiguousPath`] if what is charged for it could be another thing than what runs.
    pub fn of(path: &str) -> Result<Self, AmbiguousPath> {
        let mut read = String::with_capacity(path.len());
        let mut has_inner = false;
        for segment in path.split('/') {
            let segment = segment.split(';').next().unwrap_or_default();
            let bytes: Vec<u8> = percent_decode_str(segment).collect();
            let plain = String::from_utf8_lossy(&bytes);
            if plain.contains(|c: char| c.is_ascii_control()) {
                return Err(AmbiguousPath::Control);
            }
            // A parameter that is encoded is one to who decodes first.
            let name = |inner: &'_ str| matches!(inner.split(';').next(), Some("." | ".."));
            if plain.split(['/', '\\']).any(name) {
                return Err(AmbiguousPath::Dots);
            }
            if plain.is_empty() {
                continue;
            }
            read.push('/');
            for c in plain.chars() {
                match c {
                    '/' => read.push_str("%2F"),
                    '\\' => read.push_str("%5C"),
                    '%' => read.push_str("%25"),
                    c => read.push(c),
                }
                has_inner |= matches!(c, '/' | '\\');
            }
        }
        if read.is_empty() {
            read.push('/');
        }
        let split = has_inner.then(|| split(&read));
        Ok(Self { path: read, split })
    }
}

fn split(read: &str) -> String {
    let split = read.replace("%2F", "/").replace("%5C", "/");
    let segments = split.split('/').filter(|segment| !segment.is_empty());
    let joined = segments.fold(String::new(), |joined, segment| joined + "/" + segment);
    if joined.is_empty() { "/".to_owned() } else { joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A last slash, a parameter, or an encoded sign that services read as plain made another path of it, which no route had.
    #[test]
    fn one_path_has_one_form() {
        for (written, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b"),
            ("//a///b", "/a/b"),
            ("/a;x=1/b;y", "/a/b"),
            ("/;x/a", "/a"),
            ("/%61/%7e", "/a/~"),
            ("/ann%40x", "/ann@x"),
            ("/a%", "/a%25"),
            ("/a%zz", "/a%25zz"),
            ("/a%252e", "/a%252e"),
            ("/%c3%A9", "/é"),
            ("/...", "/..."),
            ("/a..b", "/a..b"),
            ("", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(
                Reading::of(written).unwrap(),
                Reading { path: expected.into(), split: None },
                "{written}"
            );
        }
    }

    #[test]
    fn a_slash_within_a_segment_is_read_in_both_ways() {
        for (written, path, split) in [
            ("/a%2fb", "/a%2Fb", "/a/b"),
            ("/a%2F%2Fb%2F", "/a%2F%2Fb%2F", "/a/b"),
            ("/a\\b%5cc", "/a%5Cb%5Cc", "/a/b/c"),
            ("/%2f", "/%2F", "/"),
        ] {
            assert_eq!(
                Reading::of(written).unwrap(),
                Reading { path: path.into(), split: Some(split.into()) }
            );
        }
    }

    /// What a service does with dots and control characters cannot be known: a route without a budget was charged for one
    /// with, or the other way round.
    #[test]
    fn what_services_read_in_other_ways_is_no_path() {
        for written in [
            "/a/../b",
            "/a/.",
            "/%2e%2E/a",
            "/.%2e",
            "/a/..;x/b",
            "/a/..%3bx",
            "/a%2f..%2fb",
            "/a\\..\\b",
            "/a%5c%2e%2e%5cb",
        ] {
            assert_eq!(Reading::of(written), Err(AmbiguousPath::Dots), "{written}");
        }
        for written in ["/a%00", "/a%0a", "/%7f"] {
            assert_eq!(Reading::of(written), Err(AmbiguousPath::Control), "{written}");
        }
    }
}
