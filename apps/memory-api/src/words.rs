//! What is searched: the words of a text.
//!
//! Both stores index the words as they are cut here, and are asked for words cut the same way. So they find the same
//! items, and no text of a user is ever read as a search expression of the store.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

/// The most words of one search; more narrow a result no further, and each costs the store a look.
pub const MAX_QUERY_WORDS: usize = 32;
/// Longer words are cut: PostgreSQL indexes none above 2 KiB.
const MAX_WORD_BYTES: usize = 255;

/// The words of `text`, in order: runs of letters and digits, in lower case, without accents.
///
/// ```
/// let words: Vec<String> = memory_api::words::words("Crème brûlée: 2 egg-yolks!").collect();
/// assert_eq!(words, ["creme", "brulee", "2", "egg", "yolks"]);
/// ```
pub fn words(text: &str) -> impl Iterator<Item = String> {
    let mut folded = text.nfkd().filter(|c| !is_combining_mark(*c)).flat_map(char::to_lowercase);
    std::iter::from_fn(move || {
        let mut word = String::new();
        for c in folded.by_ref() {
            if c.is_alphanumeric() {
                if word.len() + c.len_utf8() <= MAX_WORD_BYTES {
                    word.push(c);
                }
            } else if !word.is_empty() && !is_combining_mark(c) {
                break;
            }
        }
        (!word.is_empty()).then_some(word)
    })
}

/// All words of the texts, with a space between them.
pub fn joined<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut joined = String::new();
    for word in texts.into_iter().flat_map(words) {
        if !joined.is_empty() {
            joined.push(' ');
        }
        joined.push_str(&word);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_of_a_store_are_no_words() {
        for text in ["\"a\" NEAR/2 b*", "a & !b | (c)", "col:a -b ^c", "{a b}: \"\0\"", "' OR 1=1 --"] {
            assert!(words(text).all(|word| word.chars().all(char::is_alphanumeric)), "{text}");
        }
        assert_eq!(joined(["\"\"", "--", "\u{301}"]), "");
    }

    #[test]
    fn long_words_are_cut_and_stay_one_word() {
        let long = "é".repeat(1_000);
        assert_eq!(words(&long).map(|word| word.len()).collect::<Vec<_>>(), [255]);
        // Lower case of İ is an i and a combining dot.
        assert_eq!(joined(["İstanbul"]), "istanbul");
    }
}
