use core::net::IpAddr;

use proptest::prelude::*;

use super::offload::{describe, read};
use crate::device::segment::fill_checksum;
use crate::device::{Frame, Offload, RxChecksum, Transport};
use crate::region::Region;
use crate::wire::checksum::checksum;
use crate::wire::ip::{Ecn, IpHeader, Protocol};

const LINK: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0];

/// A datagram or a segment of some payload, which leaves its checksum to the device.
fn frame(v6: bool, transport: Transport, payload: &'static [u8], segment_size: u16) -> Frame {
    let (source, remote): (IpAddr, IpAddr) = match v6 {
        true => ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()),
        false => ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
    };
    let (protocol, mut header) = match transport {
        Transport::Tcp => (Protocol::Tcp, vec![7; 20]),
        _ => (Protocol::Udp, vec![7; 8]),
    };
    let at = if transport == Transport::Tcp { 16 } else { 6 };
    header[at..at + 2].fill(0);
    if transport == Transport::Tcp {
        header[12] = 0x50;
    }
    let ip = IpHeader::new(source, remote, protocol, header.len() + payload.len(), Ecn::NotEct).unwrap();
    let extent = Region::from_static(payload).extent(0, payload.len() as u32).unwrap();
    let l4 = LINK.len() + ip.len();
    let offload = Offload { transport, l3_offset: 14, l4_offset: l4 as u8, segment_size };
    Frame::with_extents(&[&LINK, ip.as_bytes(), &header], &[extent], offload).unwrap()
}

fn number(bytes: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))
}

proptest! {
    /// As the kernel does it: the sum over all bytes from `csum_start` on goes to `csum_offset`.
    #[test]
    fn a_receiver_that_completes_the_checksum_gets_the_right_one(
        v6: bool, tcp: bool, payload in proptest::collection::vec(any::<u8>(), 1..2000),
    ) {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        let frame = frame(v6, transport, payload.leak(), 0);
        let right: Vec<u8> = fill_checksum(frame).unwrap().pieces().flatten().copied().collect();
        let mut sent = frame;
        let header = describe(&mut sent).unwrap();
        let mut bytes: Vec<u8> = sent.pieces().flatten().copied().collect();
        let (start, offset) = (number(&header[6..]), number(&header[8..]));
        let sum = match checksum(&bytes[start..]) {
            0 if !tcp => 0xffff,
            sum => sum,
        };
        bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        prop_assert_eq!(header[0], 1);
        prop_assert_eq!(bytes, right);
    }
}

#[test]
fn a_super_segment_names_its_size_and_its_headers() {
    for (v6, kind, headers) in [(false, 1, 14 + 20 + 20), (true, 4, 14 + 40 + 20)] {
        let mut frame = frame(v6, Transport::Tcp, &[5; 9000], 1448);
        let header = describe(&mut frame).unwrap();
        assert_eq!((header[0], header[1]), (1, kind));
        assert_eq!((number(&header[2..]), number(&header[4..])), (headers, 1448));
        assert_eq!(read(header), (RxChecksum::Verified, 1448));
    }
}

#[test]
fn a_whole_frame_says_nothing() {
    let mut frame = Frame::new(&[&LINK, b"hello"], None).unwrap();
    let header = describe(&mut frame).unwrap();
    assert_eq!(header, [0; 10]);
    assert_eq!(read(header), (RxChecksum::Unknown, 0));
    // Bytes that were checked, and a size without a kind.
    assert_eq!(read([2, 0, 0, 0, 9, 9, 0, 0, 0, 0]), (RxChecksum::Verified, 0));
}
