//! An operation's place in the eager budget, and its unreleased fragments.

use crate::schedule::Buffer;

/// An operation's sends.
#[derive(Debug, Default)]
pub(in crate::executor) struct Sends {
    /// All messages wait for credit.
    credit: bool,
    /// Where it begins and ends among the small operations.
    begins: u64,
    ends: u64,
    /// Fragments that are not released, and those of them that lie in the tensor.
    unreleased: u32,
    data_unreleased: u32,
}

impl Sends {
    pub(super) fn start(&mut self, credit: bool, (begins, ends): (u64, u64)) {
        *self = Self { credit, begins, ends, unreleased: 0, data_unreleased: 0 };
    }

    /// Whether all messages wait for credit.
    #[inline]
    pub(in crate::executor) fn wait_for_credit(&self) -> bool {
        self.credit
    }

    /// Where the operation begins among the small ones.
    pub(in crate::executor) fn begins(&self) -> u64 {
        self.begins
    }

    /// Where it ends among them.
    #[inline]
    pub(in crate::executor) fn ends(&self) -> u64 {
        self.ends
    }

    /// So many fragments were posted from there.
    #[inline]
    pub(super) fn posted(&mut self, fragments: u32, from: Buffer) {
        self.unreleased += fragments;
        if matches!(from, Buffer::Data | Buffer::Input) {
            self.data_unreleased += fragments;
        }
    }

    /// A fragment from there was released.
    #[inline]
    pub(super) fn released(&mut self, from: Buffer) {
        self.unreleased = self.unreleased.saturating_sub(1);
        if matches!(from, Buffer::Data | Buffer::Input) {
            self.data_unreleased = self.data_unreleased.saturating_sub(1);
        }
    }

    /// No transport refers to anything of it any more.
    pub(super) fn fenced(&mut self) {
        self.unreleased = 0;
    }

    /// Fragments that are not released.
    #[inline]
    pub(in crate::executor) fn unreleased(&self) -> u32 {
        self.unreleased
    }

    /// Unreleased fragments that lie in the tensor.
    pub(in crate::executor) fn data_unreleased(&self) -> u32 {
        self.data_unreleased
    }
}
