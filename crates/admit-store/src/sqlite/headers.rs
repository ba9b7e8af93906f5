//! Headers as bytes: for each the length of the name, the name, the length of the value and the value. Lengths are 32 bits,
//! the highest byte first.

type Headers = Vec<(String, Vec<u8>)>;

pub(super) fn encode(headers: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in headers.iter().flat_map(|(name, value)| [name.as_bytes(), value]) {
        // SQLite refuses a value this long before its length could be cut off.
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Nothing if that is not what [`encode`] makes.
pub(super) fn decode(mut bytes: &[u8]) -> Option<Headers> {
    let mut headers = Vec::new();
    while !bytes.is_empty() {
        let name = part(&mut bytes)?;
        let value = part(&mut bytes)?;
        headers.push((String::from_utf8(name.to_vec()).ok()?, value.to_vec()));
    }
    Some(headers)
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (part, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    *bytes = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_what_is_cut_off_is_noticed() {
        let headers = vec![("etag".to_owned(), vec![0xff, 0]), (String::new(), vec![])];
        let bytes = encode(&headers);
        assert_eq!(decode(&bytes), Some(headers));
        assert_eq!(decode(&[]), Some(vec![]));
        for end in [1, 5, 9, bytes.len() - 1] {
            assert_eq!(decode(&bytes[..end]), None, "{end} bytes");
        }
    }
}
