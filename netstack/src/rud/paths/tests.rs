use super::*;
use crate::rud::crc::HEAD_ROOM;
use crate::wire::rud::{DatagramKind, Held, Psn};

const IPS: [IpAddr; 2] =
    [IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2))];

/// The paths from one end.
fn paths(end: usize) -> Paths {
    Paths::new(&SessionParams {
        local_tag: 1,
        remote_tag: 2,
        remote_ip: IPS[1 - end],
        local_ip: IPS[end],
        remote_port: 40_000,
        local_ports: [50_000, 50_001, 50_007].into(),
        max_datagram: 0,
        seal: None,
    })
}

/// Takes every datagram.
#[derive(Default)]
struct Outlet {
    sent: Vec<(Destination, Vec<u8>)>,
}

impl Emit for Outlet {
    fn room(&self) -> usize {
        1
    }
    fn emit(&mut self, to: &Destination, header: &[u8], _: Option<Extent>) -> bool {
        self.sent.push((*to, header.to_vec()));
        true
    }
}

const HEADER: Header = Header {
    kind: DatagramKind::Data,
    ack_request: false,
    body_len: 5,
    payload_len: 0,
    tag: 2,
    psn: Psn(7),
    base_lag: 0,
    cumulative: Psn(0),
    sack_word: 0,
    sack: 0,
    marks: 0,
    network_marks: false,
    held: Held::new(0, false),
};

#[test]
fn a_head_can_be_sent_again_and_keeps_its_body() {
    let (mut ours, theirs) = (paths(0), paths(1));
    let mut outlet = Outlet::default();
    let mut head = [0xaa; HEAD_ROOM];
    head[HEADER_LEN..][..5].copy_from_slice(b"hello");
    for psn in [7, 8] {
        let header = Header { psn: Psn(psn), ..HEADER };
        assert!(ours.send(2, &header, &mut head, 0, None, &mut outlet));
        let (to, bytes) = outlet.sent.pop().unwrap();
        assert_eq!(to.src_port, 50_007);
        assert_eq!(&bytes[HEADER_LEN..], b"hello");
        let meta = DatagramMeta {
            src_ip: to.local_ip,
            dst_ip: to.remote_ip,
            src_port: to.src_port,
            dst_port: to.dst_port,
            congestion_experienced: false,
        };
        assert_eq!(Header::parse(&bytes), Ok(header));
        assert!(theirs.lead(&meta) && theirs.verify(&meta, &header, &bytes));
        assert!(!ours.lead(&meta));
        // The CRC covers the path.
        let other = DatagramMeta { src_port: meta.src_port + 1, ..meta };
        assert!(theirs.lead(&other) && !theirs.verify(&other, &header, &bytes));
    }
}
