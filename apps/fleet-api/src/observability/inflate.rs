//! Bodies as they come over the wire, inflated under a cap.

use std::borrow::Cow;
use std::io::Read;

use flate2::bufread::MultiGzDecoder;

/// How a body is encoded on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// As it is.
    Identity,
    /// gzip (RFC 1952), one member or several.
    Gzip,
}

/// Why a body could not be inflated.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// Not gzip, damaged, or cut off.
    #[error("the body is not whole gzip data")]
    NotGzip(#[source] std::io::Error),
    /// It inflates to more than the cap. No more than the cap was inflated.
    #[error("the body inflates to more than {cap} bytes")]
    TooLarge {
        /// The cap, in bytes.
        cap: usize,
    },
}

/// The body without its encoding, of at most `cap` bytes.
///
/// # Errors
/// [`InflateError`].
pub fn inflate(wire: &[u8], encoding: Encoding, cap: usize) -> Result<Cow<'_, [u8]>, InflateError> {
    let inflated = match encoding {
        Encoding::Identity => Cow::Borrowed(wire),
        Encoding::Gzip => {
            let mut inflated = Vec::new();
            let mut decoder = MultiGzDecoder::new(wire).take(cap as u64 + 1);
            decoder.read_to_end(&mut inflated).map_err(InflateError::NotGzip)?;
            Cow::Owned(inflated)
        }
    };
    if inflated.len() > cap { Err(InflateError::TooLarge { cap }) } else { Ok(inflated) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn whole_gzip_is_inflated_up_to_the_cap() {
        assert_eq!(*inflate(&gzip(b"four"), Encoding::Gzip, 4).unwrap(), *b"four");
        let two_members = [gzip(b"f"), gzip(b"our")].concat();
        assert_eq!(*inflate(&two_members, Encoding::Gzip, 4).unwrap(), *b"four");
        assert!(matches!(
            inflate(&gzip(b"fives"), Encoding::Gzip, 4),
            Err(InflateError::TooLarge { cap: 4 })
        ));
        assert!(matches!(inflate(b"fives", Encoding::Identity, 4), Err(InflateError::TooLarge { cap: 4 })));
    }

    #[test]
    fn a_bomb_is_not_inflated_beyond_the_cap() {
        let bomb = gzip(&vec![0; 64 << 20]);
        assert!(bomb.len() < 1 << 17);
        assert!(matches!(inflate(&bomb, Encoding::Gzip, 1 << 20), Err(InflateError::TooLarge { .. })));
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_not_gzip() {
        let whole = gzip(b"some telemetry");
        for length in 0..whole.len() {
            let cut = inflate(&whole[..length], Encoding::Gzip, 100);
            assert!(matches!(cut, Err(InflateError::NotGzip(_))), "{length} bytes");
        }
        let mut damaged = whole.clone();
        damaged[whole.len() - 6] ^= 1; // In the checksum.
        let garbage_behind = [&whole[..], b"x"].concat();
        for wrong in [damaged, garbage_behind, b"plain".to_vec()] {
            assert!(matches!(inflate(&wrong, Encoding::Gzip, 100), Err(InflateError::NotGzip(_))));
        }
    }
}
