//! What drives an endpoint: datagrams, time, and room to send.

use core::cmp::Reverse;
use std::collections::VecDeque;

use super::{Endpoint, Entry};
use crate::device::FramesOut;
use crate::rud::api::{DatagramMeta, Disposition, Emit, Failure, MessageToken, SessionId, Sink};
use crate::rud::deadlines::Deadlines;
use crate::rud::paths::Paths;
use crate::rud::recovery::NEVER;
use crate::rud::seal::{Seal, Sealing, Unopened};
use crate::rud::session::{Accepted, Look, Session, TransmitOutcome};
use crate::time::Instant;
use crate::wire::rud::Header;

/// Sessions that are asked for reports in one call when the turn is over.
const MOST_REPORTS: usize = 64;

impl Endpoint {
    /// The caller looks for datagrams now; `more`: its look before left some behind. A caller that looks rarely cannot
    /// tell how long a datagram was there, and its acknowledgements say so. Without these calls every datagram counts
    /// as one that has just come.
    #[inline]
    pub fn on_poll(&mut self, now: Instant, more: bool) {
        self.latest = now.as_nanos();
        self.looks.on_look(now.as_nanos(), more);
    }

    /// Takes in one received UDP payload.
    #[inline]
    pub fn on_datagram(
        &mut self,
        now: Instant,
        meta: &DatagramMeta,
        udp_payload: &[u8],
        sink: &mut impl Sink,
    ) {
        let now = now.as_nanos();
        let Ok(header) = Header::parse(udp_payload) else {
            // With another type of sink: so what a datagram without a seal goes through has one caller, and is inlined.
            self.on_sealed(now, meta, udp_payload, &mut Sealed(sink));
            return;
        };
        let Some(index) = self.tags.get(header.tag) else {
            self.on_unknown(now, meta);
            return;
        };
        let mut entry = &mut self.entries[index as usize];
        if entry.session.is_none() {
            self.on_first(now, index, meta, header, udp_payload);
            entry = &mut self.entries[index as usize];
        }
        let Some(session) = entry.session.as_deref_mut() else { return };
        let look = Look { now, late: self.looks.late, frames_out: self.frames_out };
        match session.on_datagram(look, meta, &header, udp_payload, sink) {
            Accepted::Yes => self.network_marks.add(session.network_marks()),
            Accepted::WrongAddress => self.counters.wrong_address += 1,
            Accepted::Damaged => self.counters.crc_dropped += 1,
            Accepted::Malformed => self.counters.malformed += 1,
        }
        Self::settle(&mut self.ready, &mut self.deadlines, now, index, entry);
        if self.frames_out != FramesOut::None {
            self.note_holding(index);
        }
    }

    /// A datagram with the tag of a session that has not begun, which may begin by it.
    #[cold]
    fn on_first(&mut self, now: u64, index: u16, meta: &DatagramMeta, header: Header, datagram: &[u8]) {
        //= rud/spec.md section 3.4, RUD-6
        // Data alone is a first use, if it is undamaged and has the session's addresses.
        if !header.kind.has_message() {
            return;
        }
        let entry = &self.entries[index as usize];
        let Some(params) = entry.enlisted.as_deref() else { return };
        let paths = Paths::new(params);
        if !paths.lead(meta) {
            self.counters.wrong_address += 1;
            return;
        }
        if params.seal.is_some() || !paths.verify(meta, &header, datagram) {
            self.counters.crc_dropped += 1;
            return;
        }
        let id = SessionId::new(index, entry.generation);
        self.begin_enlisted(now, id);
    }

    /// A datagram with the tag of no session.
    #[cold]
    fn on_unknown(&mut self, now: u64, meta: &DatagramMeta) {
        //= rud/spec.md section 3.1, RUD-3
        self.counters.unknown_session += 1;
        //= rud/spec.md section 9.1
        // Hosts to which no session leads leave nothing behind.
        if self.peers.has(meta.src_ip) {
            self.unknown.insert(meta.src_ip, now);
        }
    }

    /// A datagram that is sealed, or malformed.
    #[inline(never)]
    fn on_sealed(&mut self, now: u64, meta: &DatagramMeta, datagram: &[u8], sink: &mut impl Sink) {
        let Ok((header, number)) = Header::parse_sealed(datagram) else {
            self.counters.malformed += 1;
            return;
        };
        let Some(index) = self.tags.get(header.tag) else {
            self.on_unknown(now, meta);
            return;
        };
        let entry = &mut self.entries[index as usize];
        //= rud/spec.md section 5.1, RUD-17
        // Addresses, then number and seal are checked, before anything takes effect.
        let leads = match (&mut entry.session, &entry.enlisted) {
            (Some(session), _) => session.leads(now, meta),
            //= rud/spec.md section 3.4, RUD-6
            (None, Some(params)) if header.kind.has_message() => {
                let leads = Paths::new(params).lead(meta);
                if leads {
                    Entry::seal(&mut entry.seal, params);
                }
                leads
            }
            _ => return,
        };
        if !leads {
            self.counters.wrong_address += 1;
            return;
        }
        match entry.seal.as_deref_mut().map_or(Err(Unopened::Broken), |seal| seal.open(number, datagram)) {
            Ok(()) => {}
            Err(Unopened::Replayed) => {
                self.counters.replayed += 1;
                return;
            }
            Err(Unopened::Broken) => {
                self.counters.crc_dropped += 1;
                if let Some(session) = entry.session.as_deref_mut() {
                    session.on_damaged(now);
                }
                return;
            }
        }
        let id = SessionId::new(index, entry.generation);
        self.begin_enlisted(now, id);
        let entry = &mut self.entries[index as usize];
        if let (Some(session), Some(seal)) = (entry.session.as_deref_mut(), entry.seal.as_deref()) {
            let look = Look { now, late: self.looks.late, frames_out: self.frames_out };
            let accepted = session.on_checked(look, meta, &header, seal.opened(), sink);
            self.network_marks.add(session.network_marks());
            self.counters.malformed += u64::from(accepted == Accepted::Malformed);
        }
        Self::settle(&mut self.ready, &mut self.deadlines, now, index, entry);
        if self.frames_out != FramesOut::None {
            self.note_holding(index);
        }
    }

    /// The session of an entry has taken in a datagram.
    #[inline(always)]
    fn settle(ready: &mut VecDeque<u16>, deadlines: &mut Deadlines, now: u64, index: u16, entry: &mut Entry) {
        let Some(session) = entry.session.as_deref_mut() else { return };
        entry.due = entry.due.min(session.near_deadline());
        if !entry.ready && session.wants_transmit(now) {
            Self::make_ready(ready, entry, index);
        }
        Self::arm(deadlines, entry, index);
    }

    /// Sends due datagrams (resends, data, acknowledgements, heartbeats) while `emit` has room; of data, until the turn is over.
    #[inline]
    pub fn transmit(&mut self, now: Instant, emit: &mut impl Emit) {
        let now = now.as_nanos();
        while let Some(index) = self.ready.pop_front() {
            match self.transmit_one(now, index, emit) {
                TransmitOutcome::Done | TransmitOutcome::Paced(_) => {}
                TransmitOutcome::More => return self.transmit_reports(now, index, emit),
                TransmitOutcome::Blocked => {
                    // The next session begins when there is room again.
                    self.ready.push_back(index);
                    return;
                }
            }
        }
    }

    /// The turn is over: others send what they have to report, and go before `last`, which used it up, next time.
    #[cold]
    fn transmit_reports(&mut self, now: u64, last: u16, emit: &mut impl Emit) {
        for _ in 0..self.ready.len().min(MOST_REPORTS) {
            let Some(index) = self.ready.pop_front() else { break };
            match self.transmit_one(now, index, emit) {
                TransmitOutcome::Done | TransmitOutcome::Paced(_) => {}
                TransmitOutcome::More => self.ready.push_back(index),
                TransmitOutcome::Blocked => {
                    self.ready.push_back(index);
                    break;
                }
            }
        }
        self.ready.push_back(last);
    }

    /// One session sends.
    #[inline(always)]
    fn transmit_one(&mut self, now: u64, index: u16, emit: &mut impl Emit) -> TransmitOutcome {
        let entry = &mut self.entries[index as usize];
        let outcome = match entry.session.as_deref_mut() {
            Some(session) => {
                let interval = self.looks.interval;
                session.hear_of_marks(self.network_marks.get());
                let outcome = match entry.seal.as_deref_mut() {
                    //= rud/spec.md section 10, RUD-90
                    None if session.is_sealed() => TransmitOutcome::Done,
                    None => session.transmit(now, interval, emit),
                    Some(seal) => transmit_sealed(session, seal, (now, interval), emit),
                };
                entry.due = session.deadline();
                Self::arm(&mut self.deadlines, entry, index);
                outcome
            }
            None => TransmitOutcome::Done,
        };
        match outcome {
            TransmitOutcome::Done => entry.ready = false,
            TransmitOutcome::Paced(at) => {
                entry.ready = false;
                if !core::mem::replace(&mut entry.paced, true) {
                    self.paced.push(Reverse((at, index)));
                }
            }
            TransmitOutcome::More | TransmitOutcome::Blocked => {}
        }
        outcome
    }

    /// Fires timers that are due: losses, probes, time-outs, acknowledgements, heartbeats, refused messages whose
    /// back-off is over, dead peers. Call [`transmit`](Self::transmit) afterwards.
    pub fn on_timeout(&mut self, now: Instant, sink: &mut impl Sink) {
        let now = now.as_nanos();
        self.latest = now;
        while let Some(&Reverse((_, index))) = self.paced.peek().filter(|Reverse((at, _))| *at <= now) {
            self.paced.pop();
            let entry = &mut self.entries[index as usize];
            entry.paced = false;
            Self::make_ready(&mut self.ready, entry, index);
        }
        if self.deadlines.first().0 > now {
            return;
        }
        loop {
            let (at, index) = self.deadlines.first();
            if at > now {
                return;
            }
            if self.entries[index as usize].due <= now {
                self.fire(now, index, sink);
            }
            let entry = &mut self.entries[index as usize];
            entry.armed = entry.due;
            self.deadlines.put_off_first(entry.due);
        }
    }

    /// Fires the timers of one session.
    fn fire(&mut self, now: u64, index: u16, sink: &mut impl Sink) {
        let entry = &mut self.entries[index as usize];
        let Some(session) = entry.session.as_deref_mut() else { return };
        session.on_timeout(now, &self.unknown, sink);
        // Not again in this call, whatever the session says.
        entry.due = session.deadline().max(now + 1);
        if session.wants_transmit(now) {
            Self::make_ready(&mut self.ready, entry, index);
        }
        Self::arm(&mut self.deadlines, entry, index);
    }

    /// When [`on_timeout`](Self::on_timeout) has to be called at the latest. It may find nothing to do then, because
    /// deadlines that moved back are not tracked one by one. `None` without sessions.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let earliest = self.earliest();
        (earliest != NEVER).then_some(Instant::from_nanos(earliest))
    }

    /// Whether [`next_deadline`](Self::next_deadline) has come, and the caller has read what timers are judged by; `more`: its last look left
    /// datagrams behind.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant, more: bool) -> bool {
        let now = now.as_nanos();
        //= rud/spec.md section 6.3, RUD-100
        // Acknowledgements that came during a pause are read before anything counts as lost.
        self.earliest() <= now && !(more && self.looks.reads_a_pause(now))
    }

    #[inline]
    fn earliest(&self) -> u64 {
        let paced = self.paced.peek().map_or(NEVER, |Reverse((at, _))| *at);
        self.deadlines.first().0.min(paced)
    }

    /// Whether [`transmit`](Self::transmit) has something to send.
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        !self.ready.is_empty()
    }
}

/// The sink of a sealed datagram.
struct Sealed<'a, S>(&'a mut S);

impl<S: Sink> Sink for Sealed<'_, S> {
    fn deliver(&mut self, session: SessionId, header: &[u8], payload: &[u8]) -> Disposition {
        self.0.deliver(session, header, payload)
    }

    fn released(&mut self, session: SessionId, token: MessageToken) {
        self.0.released(session, token);
    }

    fn failed(&mut self, session: SessionId, why: Failure) {
        self.0.failed(session, why);
    }

    fn path_changed(&mut self, session: SessionId, bytes: usize) {
        self.0.path_changed(session, bytes);
    }
}

/// As [`Session::transmit`], of a sealed session.
#[inline(never)]
fn transmit_sealed(
    session: &mut Session,
    seal: &mut Seal,
    (now, interval): (u64, u64),
    emit: &mut impl Emit,
) -> TransmitOutcome {
    session.transmit(now, interval, &mut Sealing { seal, emit })
}
