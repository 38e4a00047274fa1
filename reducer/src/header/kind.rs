//! The kinds of messages.

coded_enum! {
    /// The type of a message.
    pub enum MessageKind {
        /// A fragment of a message.
        Data = 1;
        /// The receiver is ready for `len` messages from `round` on. With a `len` of 0 it only asks whether its peer runs the same.
        Credit = 2;
        /// The group ends; `round` is the culprit's rank, `len` the cause.
        Abort = 3;
        /// Ranks disagree about operation `seq`; `len` ranks of the sender's node have this view of it, `round` is the lowest of them, and
        /// a `granule` says that the node has another view, too.
        Vote = 4;
        /// The sender has consumed all messages of small operations before a position: `round` is its high half, `len` its low one.
        Floor = 5;
        /// A fragment of a message that a rank sends another one of itself.
        Message = 6;
        /// The sender has such a message, and sends it when it is asked to.
        Ready = 7;
        /// The receiver of the message waits for its fragments.
        Clear = 8;
        /// Receives have taken `len` messages that came unasked, from this one on.
        Taken = 9;
        /// A receive does not take the message: `round` is the reason.
        Refused = 10;
        /// The sender gives the message up.
        Withdrawn = 11;
        /// The payload is another message, header and payload, on its way to rank `round`, which is on the receiver's node.
        Relay = 14;
        /// The sender has taken `len` bytes (modulo 2^32) of relayed messages from the receiver to rank `round`.
        Relayed = 15;
        /// The sender has made a group of some ranks, and has given it the number `round`; a `granule` says that it has left the group, after
        /// as many operations as `round` (the high half) and `len` say. [`MatchKey::MAKING`](super::MatchKey::MAKING) is its group; its `seq` and `identity` say which
        /// group it makes.
        Member = 16;
        /// The sender asks for something to be done in a window of the receiver's: `round` says what, the identity where.
        Access = 17;
        /// A fragment of what an access has asked for.
        Answer = 18;
        /// The sender does not do what an access asks for: `round` is the reason.
        Denied = 19;
        /// The sender has served the receiver's accesses before this one, and has denied `round` of them.
        Applied = 20;
    }
}

impl MessageKind {
    /// Whether it belongs to the messages that ranks send and receive of themselves, outside any collective.
    #[inline]
    pub fn is_p2p(self) -> bool {
        (Self::Message as u8..=Self::Withdrawn as u8).contains(&(self as u8))
    }

    /// Whether it belongs to the accesses that ranks make to each other's windows.
    #[inline]
    pub fn is_window(self) -> bool {
        (Self::Access as u8..=Self::Applied as u8).contains(&(self as u8))
    }

    /// Whether it may carry a payload.
    #[inline]
    pub(super) fn carries_payload(self) -> bool {
        matches!(self, Self::Data | Self::Message | Self::Access | Self::Answer)
    }
}
