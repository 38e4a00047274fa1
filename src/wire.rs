//! The encoding of control messages after the handshake: postcard, by serde types.
//!
//! The handshake has compared versions before the first of them, so their form may change with the version. Messages
//! come over an authenticated connection and are bounded all the same: by their frame, by [`at_most`] where a list's
//! elements take more memory than bytes on the wire, and by refusing bytes left over.

use std::fmt;
use std::io;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The bytes do not have the form of the message that is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has no meaning; check that all hosts run the same release")]
pub(crate) struct Malformed;

/// A message has no encoding. Plain data always has one, so a type in a message is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a message cannot be encoded ({0}); report it")]
pub(crate) struct Unencodable(postcard::Error);

impl From<Unencodable> for io::Error {
    fn from(error: Unencodable) -> Self {
        Self::other(error)
    }
}

/// A message as bytes.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, Unencodable> {
    postcard::to_stdvec(message).map_err(Unencodable)
}

/// As much of a text as `most` bytes hold, cut between characters.
pub(crate) fn shortened(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The message that is exactly these bytes.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(Malformed),
    }
}

/// A list of at most `MAX` elements, for serde's `deserialize_with`; nothing is allocated for a longer one.
pub(crate) fn at_most<'a, const MAX: usize, T: Deserialize<'a>, D: Deserializer<'a>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Bounded<T, const MAX: usize>(PhantomData<T>);

    impl<'a, T: Deserialize<'a>, const MAX: usize> Visitor<'a> for Bounded<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX}")
        }

        fn visit_seq<S: SeqAccess<'a>>(self, mut list: S) -> Result<Self::Value, S::Error> {
            let mut elements = Vec::new();
            if list.size_hint().is_some_and(|len| len > MAX) {
                return Err(S::Error::invalid_length(MAX + 1, &self));
            }
            while let Some(element) = list.next_element()? {
                if elements.len() == MAX {
                    return Err(S::Error::invalid_length(MAX + 1, &self));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    deserializer.deserialize_seq(Bounded::<T, MAX>(PhantomData))
}

#[cfg(test)]
pub(crate) mod tests;
