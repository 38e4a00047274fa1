//! Linux's `struct tcp_info`, field by field: its layout is part of the kernel's interface and only grows at the end.

use core::time::Duration;

use shouter_netstack::tcp::{Info, Repair, Sending, StateName};

/// The value of fields that the stack does not keep.
const UNKNOWN: u32 = 0;

/// The bytes of the structure up to `tcpi_snd_wnd`.
pub(crate) const LEN: usize = 232;

/// The number of Linux's `enum` of states.
const fn state_number(state: StateName) -> u8 {
    match state {
        StateName::Established => 1,
        StateName::SynSent => 2,
        StateName::SynReceived => 3,
        StateName::FinWait1 => 4,
        StateName::FinWait2 => 5,
        StateName::TimeWait => 6,
        StateName::Closed => 7,
        StateName::CloseWait => 8,
        StateName::LastAck => 9,
        StateName::Listen => 10,
        StateName::Closing => 11,
    }
}

/// The number of Linux's `enum tcp_ca_state`.
const fn repair_number(repair: Repair) -> u8 {
    match repair {
        Repair::None => 0,
        Repair::Disorder => 1,
        Repair::Reduced => 2,
        Repair::Recovery => 3,
        Repair::Loss => 4,
    }
}

/// Linux's estimate of the peer's segment size until larger ones arrive: TCP_MSS_DEFAULT.
const RECEIVE_MSS: u16 = 536;

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The structure for a socket that has only a state.
pub(crate) fn of_state(state: StateName) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[0] = state_number(state);
    bytes
}

/// The structure for a connection.
pub(crate) fn of_connection(info: &Info, sending: &Sending, mtu: u16) -> [u8; LEN] {
    let mss = u64::from(info.mss.max(1));
    let segments = |bytes: u64| narrow(bytes.div_ceil(mss));
    let (own_shift, peer_shift) = info.window_shifts.unwrap_or((0, 0));
    let flags = u8::from(info.timestamps)
        | u8::from(info.sack) << 1
        | u8::from(info.window_shifts.is_some()) << 2
        | u8::from(info.ecn) << 3;
    let mut writer = Writer { bytes: [0; LEN], at: 0 };
    // State, congestion state, retransmits, probes, back-off, options, window shifts, bits.
    writer.put(&[
        state_number(info.state),
        repair_number(sending.repair),
        sending.retries,
        0,
        0,
        flags,
        (peer_shift & 15) | (own_shift & 15) << 4,
        0,
    ]);
    let threshold = if info.slow_start_threshold >= u64::from(u32::MAX) {
        0x7fff_ffff
    } else {
        segments(info.slow_start_threshold)
    };
    let words = [
        micros(info.rto),
        UNKNOWN, // ato
        u32::from(info.mss),
        u32::from(info.received_mss.max(RECEIVE_MSS.min(info.own_mss))), // rcv_mss
        sending.out,                                                     // unacked
        sending.sacked,
        sending.lost,
        sending.resent, // retrans
        UNKNOWN,        // fackets
        UNKNOWN,        // last_data_sent
        UNKNOWN,        // last_ack_sent
        UNKNOWN,        // last_data_recv
        UNKNOWN,        // last_ack_recv
        u32::from(mtu),
        info.own_window, // rcv_ssthresh
        info.srtt.map_or(0, micros),
        micros(info.rttvar),
        threshold,
        segments(info.congestion_window),
        u32::from(info.own_mss), // advmss
        3,                       // reordering, in segments: RACK has a time instead
        UNKNOWN,                 // rcv_rtt
        info.own_window,         // rcv_space
        narrow(info.retransmitted),
    ];
    words.iter().for_each(|word| writer.put(&word.to_ne_bytes()));
    // No pacing rate is set.
    for long in [u64::MAX, u64::MAX, info.bytes_acked, info.bytes_received] {
        writer.put(&long.to_ne_bytes());
    }
    let not_sent = info.unsent as u64;
    let min_rtt = info.min_rtt.map_or(u32::MAX, micros);
    for word in [UNKNOWN, UNKNOWN, narrow(not_sent), min_rtt, UNKNOWN, UNKNOWN] {
        writer.put(&word.to_ne_bytes());
    }
    // Delivery rate: not kept.
    writer.put(&[0; 8]);
    for time in [sending.busy, sending.window_limited, sending.buffer_limited] {
        writer.put(&u64::try_from(time.as_micros()).unwrap_or(u64::MAX).to_ne_bytes());
    }
    // Delivered, delivered with marks: not kept.
    writer.put(&[0; 8]);
    let resent = info.retransmitted.saturating_mul(mss);
    let sent = info.bytes_acked + info.unacknowledged.saturating_sub(info.unsent) as u64;
    writer.put(&sent.saturating_add(resent).to_ne_bytes());
    writer.put(&resent.to_ne_bytes());
    for word in [UNKNOWN, UNKNOWN, UNKNOWN, info.peer_window] {
        writer.put(&word.to_ne_bytes());
    }
    writer.bytes
}

struct Writer {
    bytes: [u8; LEN],
    at: usize,
}

impl Writer {
    fn put(&mut self, field: &[u8]) {
        let end = self.at + field.len();
        if let Some(room) = self.bytes.get_mut(self.at..end) {
            room.copy_from_slice(field);
        }
        self.at = end;
    }
}
