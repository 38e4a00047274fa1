//! Sealing: datagrams under AES-256-GCM (spec.md section 10).
//!
//! Each direction numbers its transmissions. The number is the nonce, its upper part (the epoch) chooses the key, and the receiver drops
//! what has a number that it has accepted.

use core::fmt;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use super::api::{Destination, Emit};
use crate::region::Extent;
use crate::wire::rud::{HEADER_LEN, Header, SEAL_LEN};
use replays::Replays;

mod replays;
#[cfg(test)]
mod tests;

/// Numbers for which a key is used, as a power of two.
const EPOCH_BITS: u32 = 24;

/// The purpose of keys.
const PURPOSE: &[u8] = b"shouter rud seal";

/// A secret of both ends of a session: random, or derived from one by a function that gives no hint of it.
#[derive(Clone)]
pub struct SealSecret([u8; 32]);

impl SealSecret {
    /// Both ends have the same.
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }
}

impl fmt::Debug for SealSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealSecret(..)")
    }
}

/// Why a datagram is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unopened {
    /// Its seal does not hold: it was damaged, or forged.
    Broken,
    /// It has come before, or is so old that it may have.
    Replayed,
}

/// Keys and numbers of both directions of a session.
pub(super) struct Seal {
    prk: Prk,
    out_tag: u64,
    in_tag: u64,
    /// The number of the next datagram sent.
    next: u64,
    /// The key of its epoch.
    out_key: LessSafeKey,
    /// Keys of the epochs around that of the highest number accepted, each at its epoch modulo 3.
    in_keys: [LessSafeKey; 3],
    accepted: Replays,
    /// The datagram that was opened last.
    buffer: Vec<u8>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("next", &self.next).finish_non_exhaustive()
    }
}

/// An epoch of a number.
const fn epoch(number: u64) -> u64 {
    number >> EPOCH_BITS
}

/// The key of one epoch of the direction whose datagrams carry `tag`.
fn key(prk: &Prk, tag: u64, epoch: u64) -> LessSafeKey {
    //= rud/spec.md section 10.3, RUD-95
    let info = [PURPOSE, &tag.to_be_bytes(), &epoch.to_be_bytes()];
    let okm = prk.expand(&info, &AES_256_GCM).expect("HKDF-SHA256 gives 32 bytes");
    LessSafeKey::new(UnboundKey::from(okm))
}

/// The nonce of a number.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Seal {
    /// `out_tag` and `in_tag` are those of datagrams sent and received, and differ.
    pub(super) fn new(secret: &SealSecret, out_tag: u64, in_tag: u64) -> Self {
        let prk = Salt::new(HKDF_SHA256, &[]).extract(&secret.0);
        Self {
            out_tag,
            in_tag,
            next: 0,
            out_key: key(&prk, out_tag, 0),
            in_keys: [0, 1, 2].map(|epoch| key(&prk, in_tag, epoch)),
            accepted: Replays::default(),
            buffer: Vec::new(),
            prk,
        }
    }

    /// Puts the sealed datagram of `head`, which is the fixed header as it is emitted and the body, and the payload into `datagram`, which has
    /// [`SEAL_LEN`] bytes more than both.
    pub(super) fn seal(&mut self, head: &[u8], payload: &[u8], datagram: &mut [u8]) {
        //= rud/spec.md section 10.2, RUD-93
        // Used up, whether the datagram goes out or not.
        let number = self.next;
        self.next += 1;
        if number != 0 && epoch(number) != epoch(number - 1) {
            self.out_key = key(&self.prk, self.out_tag, epoch(number));
        }
        datagram[..head.len()].copy_from_slice(head);
        let (plain, tag) = datagram.split_at_mut(head.len() + payload.len());
        plain[head.len()..].copy_from_slice(payload);
        if let Some((fixed, text)) = plain.split_first_chunk_mut::<HEADER_LEN>() {
            Header::mark_sealed(fixed, number);
            //= rud/spec.md section 10.1, RUD-92
            let sealed = self.out_key.seal_in_place_separate_tag(nonce(number), Aad::from(&*fixed), text);
            // A text of 64 GiB alone is too long.
            tag.copy_from_slice(sealed.expect("AES-GCM takes a datagram").as_ref());
        }
    }

    /// Opens `datagram`, whose number has this lower half: it is [`opened`](Self::opened) then, and counts as accepted.
    pub(super) fn open(&mut self, low: u32, datagram: &[u8]) -> Result<(), Unopened> {
        let number = self.accepted.extend(low);
        //= rud/spec.md section 10.4, RUD-98
        if !self.accepted.is_new(number) {
            return Err(Unopened::Replayed);
        }
        let (newest, its) = (epoch(self.accepted.highest()), epoch(number));
        //= rud/spec.md section 10.3, RUD-97
        if its > newest + 1 || its + 1 < newest {
            return Err(Unopened::Broken);
        }
        let (buffer, in_key) = (&mut self.buffer, &self.in_keys[(its % 3) as usize]);
        buffer.clear();
        buffer.extend_from_slice(datagram);
        let opened = buffer.split_first_chunk_mut::<HEADER_LEN>().is_some_and(|(fixed, text)| {
            in_key.open_in_place(nonce(number), Aad::from(&*fixed), text).is_ok()
        });
        buffer.truncate(datagram.len().saturating_sub(SEAL_LEN));
        if !opened {
            buffer.clear();
            return Err(Unopened::Broken);
        }
        //= rud/spec.md section 10.4, RUD-99
        self.accepted.accept(number);
        if its > newest {
            //= rud/spec.md section 10.3, RUD-97
            // The one before, its own, and the one after.
            self.in_keys[((its + 1) % 3) as usize] = key(&self.prk, self.in_tag, its + 1);
        }
        Ok(())
    }

    /// Header, body and payload of the datagram that was opened last.
    pub(super) fn opened(&self) -> &[u8] {
        &self.buffer
    }
}

/// Seals what a session emits.
pub(super) struct Sealing<'a, E> {
    pub(super) seal: &'a mut Seal,
    pub(super) emit: &'a mut E,
}

impl<E: Emit> Emit for Sealing<'_, E> {
    const SEALS: bool = true;

    fn room(&self) -> usize {
        self.emit.room()
    }

    fn is_turn_over(&self) -> bool {
        self.emit.is_turn_over()
    }

    fn emit(&mut self, to: &Destination, header: &[u8], payload: Option<Extent>) -> bool {
        let payload = payload.as_ref().map_or(&[][..], |extent| extent.as_bytes());
        let (seal, len) = (&mut *self.seal, header.len() + payload.len() + SEAL_LEN);
        self.emit.emit_written(to, len, |datagram| seal.seal(header, payload, datagram))
    }
}
