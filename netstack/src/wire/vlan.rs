//! VLAN tags (IEEE 802.1Q): four bytes, whose first two are the EtherType 0x8100 of the header before.

use super::Malformed;
use super::ethernet::EtherType;

/// Bytes that a tag adds to a frame.
pub const TAG_LEN: usize = 4;

/// A VLAN identifier from 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VlanId(u16);

impl VlanId {
    /// `None` for 0 (priority only), for 4095 (reserved) and above.
    pub const fn new(id: u16) -> Option<Self> {
        match id {
            1..=4094 => Some(Self(id)),
            _ => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A view of the four bytes behind EtherType 0x8100: tag control information and the inner EtherType.
#[derive(Clone, Copy, Debug)]
pub struct Tag<'a> {
    header: &'a [u8; TAG_LEN],
    payload: &'a [u8],
}

impl<'a> Tag<'a> {
    /// A view of the payload of an Ethernet frame whose type is [`EtherType::Vlan`].
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if there are fewer than four bytes.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, payload) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        Ok(Self { header, payload })
    }

    /// The raw VLAN identifier; 0 means a priority tag on an untagged frame.
    #[inline]
    pub fn id(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]]) & 0x0fff
    }

    /// The priority code point, 0 to 7.
    #[inline]
    pub fn priority(&self) -> u8 {
        self.header[0] >> 5
    }

    /// The payload's type.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        u16::from_be_bytes([self.header[2], self.header[3]]).into()
    }

    /// The bytes behind the tag.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// A tag as a value, with priority 0 and not eligible for dropping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The virtual LAN.
    pub id: VlanId,
    /// The payload's type.
    pub ethertype: EtherType,
}

impl Repr {
    /// The tag as the four bytes that follow EtherType 0x8100.
    pub fn emit(&self) -> [u8; TAG_LEN] {
        let [a, b] = self.id.get().to_be_bytes();
        let [c, d] = u16::from(self.ethertype).to_be_bytes();
        [a, b, c, d]
    }
}
