//! Paths as routes see them.

use std::borrow::Cow;

/// A path in one form whatever a client wrote, so that no other spelling of it passes by its route: percent signs before
/// letters, digits and `-._~` are undone (RFC 3986, section 6.2.2), repeated slashes are one, and `.` and `..` are followed.
/// The upstream gets the path as the client wrote it.
///
/// ```
/// # use admit_server::path::normalised;
/// assert_eq!(normalised("/v1/%6Aobs//7"), "/v1/jobs/7");
/// assert_eq!(normalised("/v1/../admin/./x"), "/admin/x");
/// assert_eq!(normalised("/a%2Fb"), "/a%2Fb");
/// ```
pub fn normalised(path: &str) -> Cow<'_, str> {
    let plain = |segment: &str| !segment.is_empty() && segment != "." && segment != "..";
    let inner = path.strip_prefix('/').unwrap_or(path);
    if path.starts_with('/')
        && !path.contains('%')
        && inner.strip_suffix('/').unwrap_or(inner).split('/').all(plain)
    {
        return Cow::Borrowed(path);
    }
    let undone = undo_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_open = true;
    for segment in undone.split('/') {
        ends_open = !plain(segment);
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut normalised = String::with_capacity(undone.len());
    for segment in &segments {
        normalised.push('/');
        normalised.push_str(segment);
    }
    if ends_open {
        normalised.push('/');
    }
    Cow::Owned(normalised)
}

fn undo_unreserved(path: &str) -> String {
    let mut undone = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, behind)) = rest.split_once('%') {
        undone.push_str(before);
        let code = behind.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).map(char::from) {
            Some(c) if c.is_ascii_alphanumeric() || "-._~".contains(c) => {
                undone.push(c);
                rest = &behind[2..];
            }
            _ => {
                undone.push('%');
                rest = behind;
            }
        }
    }
    undone.push_str(rest);
    undone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_form() {
        for (written, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("//a///b", "/a/b"),
            ("/a/./b/..", "/a/"),
            ("/../..", "/"),
            ("/%2e%2E/a", "/a"),
            ("/a%", "/a%"),
            ("/a%4", "/a%4"),
            ("/a%zz", "/a%zz"),
            ("/%C3%A9", "/%C3%A9"),
            ("", "/"),
            ("*", "/*"),
        ] {
            assert_eq!(normalised(written), expected, "{written}");
            assert_eq!(normalised(expected), expected, "once is enough");
        }
    }
}
