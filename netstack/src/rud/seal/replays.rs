//! Which numbers were accepted: a bitmap as in RFC 6479, of which old words are cleared as the highest number moves on.

#[cfg(test)]
mod tests;

/// Words of 64 numbers; a power of two. The newest is filled while the oldest is kept, so that one less counts.
const WORDS: u64 = 128;

/// Numbers, the highest among them, of which it is known whether they were accepted.
pub(super) const WINDOW: u64 = (WORDS - 1) * 64;

/// The numbers accepted.
#[derive(Debug)]
pub(super) struct Replays {
    /// One more than the highest; 0: none was.
    end: u64,
    bits: Box<[u64; WORDS as usize]>,
}

impl Default for Replays {
    fn default() -> Self {
        Self { end: 0, bits: Box::new([0; WORDS as usize]) }
    }
}

impl Replays {
    /// The highest number accepted; 0 if none was.
    pub(super) fn highest(&self) -> u64 {
        self.end.saturating_sub(1)
    }

    /// The number with this lower half that is nearest to the highest accepted.
    pub(super) fn extend(&self, low: u32) -> u64 {
        //= RFC 4304 section 2.2: the upper half is not sent.
        //= rud/spec.md section 10.2, RUD-94
        let highest = self.highest();
        let distance = i64::from(low.wrapping_sub(highest as u32) as i32);
        // Below 0 there is none, so it is ahead.
        highest.checked_add_signed(distance).unwrap_or(u64::from(low))
    }

    /// Whether a number may be accepted: it was not, and is not too old to tell.
    pub(super) fn is_new(&self, number: u64) -> bool {
        number >= self.end || number + WINDOW >= self.end && self.word(number) & bit(number) == 0
    }

    /// A number is accepted.
    pub(super) fn accept(&mut self, number: u64) {
        if number >= self.end {
            // Words from behind that of the highest to its own have numbers of a turn before.
            let (first, last) = (self.end.div_ceil(64), number / 64);
            for word in first.max((last + 1).saturating_sub(WORDS))..=last {
                self.bits[(word % WORDS) as usize] = 0;
            }
            self.end = number + 1;
        }
        self.bits[(number / 64 % WORDS) as usize] |= bit(number);
    }

    fn word(&self, number: u64) -> u64 {
        self.bits[(number / 64 % WORDS) as usize]
    }
}

const fn bit(number: u64) -> u64 {
    1 << (number % 64)
}
