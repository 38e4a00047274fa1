//! The handshake of a connection that was accepted, as its bytes come.

use std::mem;

use super::conn::{Conn, ReadStatus};
use super::handshake::{Acceptor as Handshake, Answer, HandshakeError, Peer};
use super::rendezvous_config::RendezvousConfig;

/// How far a connection has come.
pub(super) enum Proving {
    /// More bytes have to come.
    Waits,
    /// It holds the key.
    Proved(Peer),
    /// It does not.
    Rejected(&'static str),
    /// It takes no bytes any more.
    Broken,
}

/// Moves the handshake on as far as the received bytes go.
pub(super) fn advance(conn: &mut Conn, handshake: &mut Handshake, config: &RendezvousConfig) -> Proving {
    const BROKE_OFF: Proving = Proving::Rejected("it broke off before proving itself");
    const OTHER: Proving = Proving::Rejected("it speaks another protocol");
    loop {
        if conn.flush().is_err() {
            return Proving::Broken;
        }
        let wanted = handshake.wanted();
        let Ok(end) = conn.read(wanted) else { return BROKE_OFF };
        if !handshake.plausible(&conn.inbox) {
            return OTHER;
        }
        if conn.inbox.len() < wanted {
            return if end == ReadStatus::Closed { BROKE_OFF } else { Proving::Waits };
        }
        let bytes = mem::take(&mut conn.inbox);
        match handshake.step(&config.key, &config.job, &bytes) {
            Ok(Answer::Send(opening)) => conn.queue(&opening),
            Ok(Answer::Refuse(verdict)) => {
                conn.queue(&verdict);
                // One attempt: bytes that do not fit into the socket's buffer do not reach it.
                let _ = conn.flush();
                return Proving::Rejected("it has another key");
            }
            Ok(Answer::Welcome(verdict, peer)) => {
                conn.queue(&verdict);
                return Proving::Proved(peer);
            }
            Err(HandshakeError::OtherProtocol | HandshakeError::WrongKey) => return OTHER,
        }
    }
}
