use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{BindError, Delivery, SocketConfig, Sockets};
use crate::time::Instant;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4000);

fn at(ip: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(ip, port)
}

fn deliver(sockets: &mut Sockets, to: SocketAddr, payload: &[u8]) -> Delivery {
    sockets.deliver(Instant::ZERO, PEER, to, payload)
}

#[test]
fn a_port_belongs_to_one_socket() {
    let mut sockets = Sockets::new(Some(7000), 0);
    let config = SocketConfig::default();
    let one = sockets.bind(at(HOST, 5000), config).unwrap();
    let in_use = |address| Err(BindError::InUse { address });
    assert_eq!(sockets.bind(at(HOST, 5000), config), in_use(at(HOST, 5000)));
    let any = at(ANY, 5000);
    assert_eq!(sockets.bind(any, config), in_use(any));
    assert_eq!(sockets.bind(at(HOST, 7000), config), in_use(at(HOST, 7000)), "the stack's own port");
    sockets.bind(at(Ipv4Addr::new(10, 0, 0, 9).into(), 5000), config).unwrap();
    sockets.close(one);
    assert_eq!(sockets.local(one), None);
    let again = sockets.bind(at(HOST, 5000), config).unwrap();
    assert_ne!(again, one);
    assert_eq!(sockets.local(again), Some(at(HOST, 5000)));
    let free = sockets.bind(at(HOST, 0), config).unwrap();
    assert!(sockets.local(free).unwrap().port() >= 49_152);
}

#[test]
fn all_ephemeral_ports_can_be_had_and_then_no_more() {
    let mut sockets = Sockets::new(Some(50_000), 12_345);
    let config = SocketConfig { queue_datagrams: 0, queue_bytes: 0, checksum: true };
    for _ in 0..16_383 {
        let port = sockets.ephemeral(HOST).unwrap();
        sockets.bound.insert((port, HOST), 0);
    }
    assert_eq!(sockets.bind(at(HOST, 0), config), Err(BindError::NoFreePort { address: HOST }));
}

#[test]
fn datagrams_wait_in_order_and_within_bounds() {
    let mut sockets = Sockets::new(None, 0);
    let config = SocketConfig { queue_datagrams: 3, queue_bytes: 10, checksum: true };
    let socket = sockets.bind(at(ANY, 5000), config).unwrap();
    assert_eq!(deliver(&mut sockets, at(HOST, 5001), b"x"), Delivery::NoSocket);
    assert_eq!(deliver(&mut sockets, at(HOST, 5000), b"12345"), Delivery::Queued);
    assert_eq!(deliver(&mut sockets, at(HOST, 5000), b"123456"), Delivery::QueueFull);
    assert_eq!(deliver(&mut sockets, at(HOST, 5000), b"abc"), Delivery::Queued);
    assert_eq!(deliver(&mut sockets, at(HOST, 5000), b""), Delivery::Queued);
    assert_eq!(deliver(&mut sockets, at(HOST, 5000), b""), Delivery::QueueFull);
    assert_eq!((sockets.waiting(socket), sockets.overflow(socket)), (3, 2));

    let mut buffer = [0; 4];
    let got = sockets.recv(socket, &mut buffer).unwrap();
    assert_eq!((got.len, got.from, got.local, &buffer), (5, PEER, HOST, b"1234"), "cut to the buffer");
    assert_eq!(sockets.recv(socket, &mut buffer).map(|got| got.len), Some(3));
    assert_eq!(&buffer[..3], b"abc");
    // Wraps around in the byte ring.
    assert_eq!(deliver(&mut sockets, at(HOST, 5000), b"wrapping"), Delivery::Queued);
    assert_eq!(sockets.recv(socket, &mut buffer).map(|got| got.len), Some(0));
    let mut buffer = [0; 16];
    assert_eq!(sockets.recv(socket, &mut buffer).map(|got| got.len), Some(8));
    assert_eq!(&buffer[..8], b"wrapping");
    assert_eq!(sockets.recv(socket, &mut buffer), None);
}
