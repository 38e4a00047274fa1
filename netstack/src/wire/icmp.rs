//! Common parts of ICMP and ICMPv6: echo messages and errors as values.

/// Echo request or echo reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoKind {
    /// Data to be sent back.
    Request,
    /// Data sent back.
    Reply,
}

/// An echo message as a value; its data stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Request or reply.
    pub kind: EchoKind,
    /// Distinguishes the pings of one sender.
    pub identifier: u16,
    /// Counts the requests.
    pub sequence: u16,
    /// Sent back unchanged.
    pub data: &'a [u8],
}

/// The error in an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not delivered; the code is that of the message, of ICMP or ICMPv6.
    Unreachable {
        /// Why (RFC 792, RFC 1122 section 3.2.2.1, RFC 4443 section 3.1).
        code: u8,
    },
    /// Longer than a link on the path allows.
    PacketTooBig {
        /// The largest packet in bytes that the link takes; 0 from an IPv4 router that does not say (RFC 1191
        /// section 5).
        mtu: u16,
    },
    /// It took too many hops, or its fragments too much time.
    TimeExceeded {
        /// 0 for hops, 1 for fragments.
        code: u8,
    },
    /// A node could not parse its header.
    ParameterProblem {
        /// Why (RFC 1122 section 3.2.2.5, RFC 4443 section 3.4).
        code: u8,
        /// The position in the packet, in bytes from its beginning.
        pointer: u32,
    },
}
