//! The one type for secrets, and for everything that is authenticated or derived with one: HMAC-SHA256 (RFC 2104).
//!
//! A process that holds the job's key can join the job; any other is refused before anything that it sends is parsed.
//! The key itself never crosses the wire: both ends prove that they have it, and the secrets derived from it differ for
//! each connection and each purpose.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The length of a message authentication code, and of everything that is derived from a key, in bytes.
pub const TAG_LEN: usize = 32;

/// A key shorter than this many characters can be guessed from a recorded handshake.
const STRONG_TEXT: usize = 32;
/// The largest key file that is read, in bytes.
const LARGEST_FILE: u64 = 4096;

/// A secret of 32 bytes: a job's shared key, or one derived from it.
#[derive(Clone)]
pub struct Key {
    secret: [u8; TAG_LEN],
    /// It comes from text that could be guessed.
    is_guessable: bool,
}

/// Why there is no key.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The key has no characters.
    #[error("the key is empty; make one with `openssl rand -hex 32` and give the same to every rank")]
    Empty,
    /// The file cannot be read.
    #[error("cannot read the key file {path}: {why}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        why: String,
    },
    /// The file is no key.
    #[error(
        "the key file {path} is larger than 4096 bytes; a key is a line of text such as `openssl rand -hex 32` makes"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The system has no randomness to give.
    #[error("the system gave no randomness: {0}")]
    Randomness(String),
}

impl Key {
    /// A key from text: 64 or more hexadecimal digits are taken as the bytes that they spell, other text as it is. White
    /// space around it does not count. Text under 32 characters is accepted with a warning.
    ///
    /// # Errors
    /// [`KeyError::Empty`] for text without characters.
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(KeyError::Empty);
        }
        let is_guessable = text.len() < STRONG_TEXT;
        if is_guessable {
            tracing::warn!(
                length = text.len(),
                "the job's key is short and could be guessed; make one with `openssl rand -hex 32`"
            );
        }
        let bytes = hex::decode(text).ok().filter(|bytes| bytes.len() >= TAG_LEN);
        let mut digest = Sha256::new_with_prefix(b"shouter key v1\0");
        digest.update(bytes.as_deref().unwrap_or(text.as_bytes()));
        Ok(Self { secret: digest.finalize().into(), is_guessable })
    }

    /// A key from a file that holds its text, of 4,096 bytes at most. A file that others may read is accepted with a warning.
    ///
    /// # Errors
    /// [`KeyError::File`] for a file that cannot be read or is no UTF-8, [`KeyError::TooLarge`] for a larger one; else as
    /// [`from_text`](Self::from_text).
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let failed = |error: io::Error| KeyError::File { path: path.to_owned(), why: error.to_string() };
        let mut file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            tracing::warn!(
                path = %path.display(),
                mode = %format_args!("{mode:o}"),
                "others may read the key file; run `chmod 600` on it"
            );
        }
        let mut bytes = Vec::new();
        file.by_ref().take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(KeyError::TooLarge { path: path.to_owned() });
        }
        let text = String::from_utf8(bytes).map_err(|_| {
            failed(io::Error::new(io::ErrorKind::InvalidData, "it is not text; a key is a line of text"))
        })?;
        Self::from_text(&text)
    }

    /// A new key of 32 bytes from the system's randomness.
    ///
    /// # Errors
    /// [`KeyError::Randomness`] if the system gives none.
    pub fn generate() -> Result<Self, KeyError> {
        random().map(Self::from_secret)
    }

    /// The message authentication code of `parts` for one purpose (HMAC-SHA256, RFC 2104). Each part is preceded by
    /// its length, so no two lists of parts look the same.
    pub fn tag(&self, purpose: &str, parts: &[&[u8]]) -> [u8; TAG_LEN] {
        self.mac(purpose, parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is the code of `parts` for this purpose, in a time that does not depend on where they differ.
    pub fn verify(&self, purpose: &str, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(purpose, parts).verify_slice(tag).is_ok()
    }

    /// A key of its own for one purpose.
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> Self {
        Self::from_secret(self.tag(purpose, parts))
    }

    /// The first `N` bytes of [`tag`](Self::tag), `N` at most 32: for names and numbers that only holders of the key can tell.
    pub fn tag_prefix<const N: usize>(&self, purpose: &str, parts: &[&[u8]]) -> [u8; N] {
        const { assert!(N <= TAG_LEN) };
        let tag = self.tag(purpose, parts);
        std::array::from_fn(|index| tag[index])
    }

    /// A key from bytes that are already secret and uniform.
    pub fn from_secret(secret: [u8; TAG_LEN]) -> Self {
        Self { secret, is_guessable: false }
    }

    /// Whether it comes from text that could be guessed from a recorded handshake.
    pub(crate) fn is_guessable(&self) -> bool {
        self.is_guessable
    }

    fn mac(&self, purpose: &str, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes a key of any length; 32 bytes is one.
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&self.block());
        for part in std::iter::once(purpose.as_bytes()).chain(parts.iter().copied()) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    /// The key as HMAC's inner block: padded with zeros to SHA-256's 64 bytes (RFC 2104 section 2, step 1).
    fn block(&self) -> hmac::digest::Key<Hmac<Sha256>> {
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..TAG_LEN].copy_from_slice(&self.secret);
        block
    }
}

/// In a time that does not depend on where they differ.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.verify("equal", &[], &other.tag("equal", &[]))
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Fresh randomness from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| KeyError::Randomness(error.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
