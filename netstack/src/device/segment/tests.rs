use core::net::IpAddr;

use proptest::prelude::*;

use super::{fill_checksum, segment_count, segments};
use crate::device::{Frame, MAX_EXTENTS, Offload, Transport};
use crate::region::{Extent, Region};
use crate::wire::checksum::Sum;
use crate::wire::ip::{Ecn, IpHeader, Protocol};
use crate::wire::tcp::{Flags, Header, Options, SeqNumber, Timestamps};

/// Bytes that differ from each other and from a shift of themselves.
fn memory(len: usize) -> &'static [u8] {
    let byte = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1];
    (0..len).map(byte).collect::<Vec<_>>().leak()
}

const LINK: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0];

fn addresses(v6: bool) -> (IpAddr, IpAddr) {
    if v6 {
        ("2001:db8::1".parse().unwrap(), "2001:db8::2:3".parse().unwrap())
    } else {
        ([10, 0, 0, 1].into(), [10, 1, 2, 3].into())
    }
}

fn header(seq: u32, flags: Flags, timestamps: bool) -> Header {
    Header {
        source_port: 4000,
        destination_port: 5000,
        seq: SeqNumber(seq),
        ack: SeqNumber(77),
        flags,
        window: 500,
        urgent: 0,
        options: Options {
            timestamps: timestamps.then_some(Timestamps { value: 1, echo: 2 }),
            ..Options::default()
        },
    }
}

/// The frame of a TCP segment as a stack without offloads would send it, as bytes.
fn sent(v6: bool, id: u16, header: &Header, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = addresses(v6);
    let mut tcp = header.emit().as_bytes().to_vec();
    let len = tcp.len() + payload.len();
    let ip = IpHeader::new(source, destination, Protocol::Tcp, len, Ecn::Ect0).unwrap();
    let mut ip = ip.as_bytes().to_vec();
    set_id(&mut ip, id);
    // The receiver's sum over the segment's bytes, without the code under test.
    let mut pseudo = match (source, destination) {
        (IpAddr::V4(a), IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (IpAddr::V6(a), IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => unreachable!(),
    };
    pseudo.extend_from_slice(&(len as u32).to_be_bytes());
    pseudo.extend_from_slice(&[0, 0, 0, 6]);
    let bytes = [&pseudo, tcp.as_slice(), payload].concat();
    let mut sum = 0_u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    tcp[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    [&LINK[..], &ip, &tcp, payload].concat()
}

/// Gives an IPv4 header an identification.
fn set_id(ip: &mut [u8], id: u16) {
    if ip[0] >> 4 == 4 {
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        ip[10..12].fill(0);
        let sum = Sum::new().over(ip).finish();
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The same as one super-segment whose payload lies in pieces of the given lengths.
fn super_segment(
    v6: bool,
    id: u16,
    header: &Header,
    payload: &'static [u8],
    cuts: &[usize],
    size: u16,
) -> Frame {
    let region = Region::from_static(payload);
    let (source, destination) = addresses(v6);
    let tcp = header.emit();
    let len = tcp.as_bytes().len() + payload.len();
    let mut ip =
        IpHeader::new(source, destination, Protocol::Tcp, len, Ecn::Ect0).unwrap().as_bytes().to_vec();
    set_id(&mut ip, id);
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (payload.len() + 1)).collect();
    ends.push(payload.len());
    ends.sort_unstable();
    let mut at = 0;
    let extents: Vec<Extent> = ends
        .iter()
        .map(|&end| {
            let extent = region.extent(at, (end - at) as u32).unwrap();
            at = end;
            extent
        })
        .collect();
    let offload = Offload {
        transport: Transport::Tcp,
        l3_offset: 14,
        l4_offset: 14 + ip.len() as u8,
        segment_size: size,
    };
    Frame::with_extents(&[&LINK, &ip, tcp.as_bytes()], &extents, offload).unwrap()
}

fn bytes(frame: &Frame) -> Vec<u8> {
    frame.pieces().collect::<Vec<_>>().concat()
}

/// Cuts the super-segment and compares it with the segments sent without it.
fn check(v6: bool, seq: u32, len: usize, size: u16, cuts: &[usize], flags: Flags, timestamps: bool) {
    let payload = memory(len);
    let id = 0xfffe;
    let frame = super_segment(v6, id, &header(seq, flags, timestamps), payload, cuts, size);
    let made: Vec<Vec<u8>> =
        segments(&frame).map(|segment| bytes(&fill_checksum(segment).unwrap())).collect();
    let count = len.div_ceil(usize::from(size)).max(1);
    assert_eq!((made.len(), segment_count(&frame)), (count, count));
    for (index, made) in made.iter().enumerate() {
        let from = index * usize::from(size);
        let to = len.min(from + usize::from(size));
        let mut flags = flags;
        if index + 1 < count {
            flags.0 &= !(Flags::FIN.0 | Flags::PSH.0);
        }
        if index > 0 {
            flags.0 &= !Flags::CWR.0;
        }
        let header = header(seq.wrapping_add(from as u32), flags, timestamps);
        let expected = sent(v6, id.wrapping_add(index as u16), &header, &payload[from..to]);
        assert_eq!(made, &expected, "segment {index}");
    }
}

#[test]
fn a_super_segment_is_cut_into_what_would_have_been_sent_without_it() {
    let all = Flags(Flags::FIN.0 | Flags::PSH.0 | Flags::CWR.0 | Flags::ACK.0);
    for v6 in [false, true] {
        check(v6, u32::MAX - 3000, 60_000, 1448, &[1, 1461, 30_001], all, true);
        check(v6, 5, 1, 1448, &[], all, false);
        check(v6, 5, 0, 1448, &[], all, false);
        check(v6, 5, 2896, 1448, &[7], all, false);
    }
}

proptest! {
    #[test]
    fn any_cut_of_any_payload_comes_out_whole(
        v6: bool,
        seq: u32,
        len in 0_usize..20_000,
        size in 1_u16..9000,
        cuts in prop::collection::vec(any::<usize>(), 0..MAX_EXTENTS),
        flags: u8,
        timestamps: bool,
    ) {
        // Any flags but SYN, which makes a segment another kind.
        prop_assume!(len / usize::from(size) < 300);
        check(v6, seq, len, size, &cuts, Flags(flags & !Flags::SYN.0), timestamps);
    }
}

#[test]
fn a_checksum_of_zero_is_sent_as_all_ones_in_udp() {
    // The port is chosen so that everything adds up to all ones.
    let (source, destination) = addresses(false);
    let ip = IpHeader::new(source, destination, Protocol::Udp, 8, Ecn::NotEct).unwrap();
    let mut udp = [0, 1, 0, 2, 0, 8, 0, 0];
    let offload = Offload { transport: Transport::Udp, l3_offset: 14, l4_offset: 34, segment_size: 0 };
    let filled = |udp: &[u8; 8]| {
        let frame = Frame::with_extents(&[&LINK, ip.as_bytes(), udp], &[], offload).unwrap();
        let filled = fill_checksum(frame).unwrap();
        assert!(filled.offload().is_none());
        u16::from_be_bytes(*filled.header()[40..].first_chunk::<2>().unwrap())
    };
    let first = filled(&udp);
    udp[..2].copy_from_slice(&(1 + first).to_be_bytes());
    assert_eq!(filled(&udp), 0xffff);
}

#[test]
fn offloads_whose_headers_are_not_there_are_refused() {
    let frame = super_segment(false, 0, &header(1, Flags::ACK, false), memory(10), &[], 5);
    let good = frame.offload();
    let make = |offload| Frame::with_extents(&[frame.header()], frame.extents(), offload);
    assert!(make(good).is_some());
    for bad in [
        Offload { l3_offset: 13, ..good },
        Offload { l3_offset: 200, ..good },
        Offload { l4_offset: 33, ..good },
        Offload { l4_offset: 35, ..good },
        Offload { l4_offset: 255, ..good },
        Offload { transport: Transport::Udp, ..good },
    ] {
        assert!(make(bad).is_none(), "{bad:?}");
    }
    // With payload behind the header only a checksum can be requested.
    let inline = |segment_size| {
        let offload = Offload { segment_size, ..good };
        Frame::with_extents(&[frame.header(), b"payload"], &[], offload).is_some()
    };
    assert!(inline(0) && !inline(5));
    let extent = frame.extents()[0];
    assert!(Frame::with_extents(&[b"header"], &[extent; MAX_EXTENTS + 1], Offload::NONE).is_none());
}
