//! Queries to the kernel's routing, over rtnetlink(7), and the names of network interfaces.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with,
};

use super::Errno;

/// How long the kernel may take to answer. It answers at once.
const DEADLINE: Duration = Duration::from_secs(1);

/// Sends each request on one rtnetlink socket, and hands its answer to `answer`.
pub(in super::super) fn ask_routes(
    requests: &[Vec<u8>],
    mut answer: impl FnMut(usize, &[u8]),
) -> Result<(), Errno> {
    let socket = socket()?;
    set_socket_timeout(&socket, Timeout::Recv, Some(DEADLINE))?;
    for (index, request) in requests.iter().enumerate() {
        // Without an address it goes to the kernel.
        send(&socket, request, SendFlags::empty())?;
        let mut reply = [0_u8; 4096];
        let (len, _) = recv(&socket, &mut reply, RecvFlags::empty())?;
        answer(index, reply.get(..len).unwrap_or_default());
    }
    Ok(())
}

fn socket() -> rustix::io::Result<OwnedFd> {
    // NETLINK_ROUTE is protocol 0.
    socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
}

/// The number of network interface `name`.
pub(in super::super) fn interface_index(name: &str) -> Option<u32> {
    netdevice::name_to_index(socket().ok()?, name).ok()
}

/// The name of network interface `index`.
pub(in super::super) fn interface_name(index: u32) -> Option<String> {
    netdevice::index_to_name(socket().ok()?, index).ok()
}
