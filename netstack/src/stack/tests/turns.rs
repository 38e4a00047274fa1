//! A poll takes in a turn of frames, and sends a turn of RUD's datagrams: what has come meanwhile is looked at before more is sent.

use super::*;

/// The MTU of the ports, and the payload of messages whose datagrams fill it.
const MTU: u16 = 4_200;
const LONG: usize = 4_000;

/// The datagrams of such messages, and those of few bytes, that are a turn of 128 KiB.
const LONG_IN_A_TURN: usize = 33;
const SHORT_IN_A_TURN: usize = 64;

/// A device that takes up to `room` frames, and gives none.
struct Taking {
    capabilities: Capabilities,
    room: usize,
    /// The frames of each call that took some.
    taken: Vec<usize>,
}

// SAFETY: no frame is read.
#[allow(unsafe_code)]
unsafe impl Device for Taking {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn mac(&self) -> [u8; 6] {
        MAC_A.0
    }
    fn link_up(&mut self) -> bool {
        true
    }
    fn transmit(&mut self, _: Instant, batch: &mut TxBatch) -> usize {
        let taken = batch.frames().len().min(self.room);
        self.room -= taken;
        self.taken.extend((taken != 0).then_some(taken));
        batch.consume(taken);
        taken
    }
    fn receive(&mut self, _: Instant, _: usize, _: &mut impl FnMut(RxFrame<'_>)) -> usize {
        0
    }
    fn counters(&self) -> DeviceCounters {
        DeviceCounters::default()
    }
}

/// A stack on such a device with `sessions` that may have any number of datagrams in flight.
fn stack(sessions: u64, room: usize) -> (Stack<Taking>, Vec<SessionId>) {
    let device =
        Taking { capabilities: Capabilities::plain("test", MTU, 32), room: usize::MAX, taken: vec![] };
    let mut settings = StackConfig::new(1).with_rud(RUD_PORT);
    settings.rud.initial_window = 960;
    let mut stack = Stack::new(settings);
    let port = PortConfig { neighbours: vec![(B, MAC_B.0)], ..PortConfig::new(A, 24, MTU) };
    stack.add_port(device, port).unwrap();
    stack.poll_with(Instant::ZERO, &mut Collect::default());
    let ids = (1..=sessions).map(|number| session(&mut stack, A, B, (2 * number, 2 * number + 1))).collect();
    let device = stack.device_mut(PortId(0)).unwrap();
    (device.room, device.taken) = (room, vec![]);
    (stack, ids)
}

fn queue<D: Device>(stack: &mut Stack<D>, id: SessionId, messages: u64, len: usize) {
    for message in 0..messages {
        let payload = region().extent(0, len as u32);
        stack.rud_mut().send(id, b"header", payload, MessageToken(message)).unwrap();
    }
}

/// The frames that the device takes in so many polls.
fn polls(stack: &mut Stack<Taking>, count: u64) -> Vec<usize> {
    for poll in 0..count {
        stack.poll_with(at_micros(1 + poll), &mut Collect::default());
    }
    core::mem::take(&mut stack.device_mut(PortId(0)).unwrap().taken)
}

#[test]
fn a_poll_sends_a_turn_of_long_datagrams() {
    let (mut stack, ids) = stack(1, usize::MAX);
    queue(&mut stack, ids[0], 100, LONG);
    let taken = polls(&mut stack, 5);
    assert_eq!((&taken[..3], taken.len()), (&[LONG_IN_A_TURN; 3][..], 4));
}

#[test]
fn a_poll_sends_a_turn_of_short_datagrams() {
    let (mut stack, ids) = stack(1, usize::MAX);
    stack.rud_mut().set_bundles(ids[0], false);
    queue(&mut stack, ids[0], 200, 8);
    let taken = polls(&mut stack, 5);
    assert_eq!((&taken[..3], taken.len()), (&[SHORT_IN_A_TURN; 3][..], 4));
}

/// Datagrams that are made say what had come until then: those that would wait for the device are not made.
#[test]
fn a_turn_of_datagrams_waits_for_a_device_that_takes_none() {
    let (mut stack, ids) = stack(2, 0);
    for id in ids {
        queue(&mut stack, id, 200, LONG);
    }
    assert_eq!(polls(&mut stack, 10), [0; 0]);
    assert_eq!(stack.ports[0].iface.room() + LONG_IN_A_TURN, stack.ports[0].iface.capacity());
    // Room for five: five more are made.
    stack.device_mut(PortId(0)).unwrap().room = 5;
    assert_eq!(polls(&mut stack, 10), [5]);
    assert_eq!(stack.ports[0].iface.room() + LONG_IN_A_TURN, stack.ports[0].iface.capacity());
}

#[test]
fn sessions_take_turns() {
    let (mut stack, ids) = stack(3, usize::MAX);
    for id in &ids {
        queue(&mut stack, *id, 200, LONG);
    }
    polls(&mut stack, 3);
    let sent: Vec<u64> = ids.iter().map(|id| stack.rud().counters(*id).sent).collect();
    assert_eq!(sent, [LONG_IN_A_TURN as u64; 3]);
}

#[test]
fn a_poll_takes_in_a_turn_of_frames() {
    let (device_a, device_b) = Loopback::pair(MTU, 256);
    let port = |address| PortConfig::new(address, 24, MTU);
    let (mut a, mut b) = (stack_of(device_a, port(A)), stack_of(device_b, port(B)));
    let (mut sink_a, mut sink_b) = (Collect::default(), Collect::default());
    let ids = [session(&mut a, A, B, (1, 2)), session(&mut b, B, A, (2, 1))];
    queue(&mut a, ids[0], 300, LONG);
    let mut most = 0;
    for time in 0..400 {
        // It polls more often than the other, so that frames pile up.
        for _ in 0..4 {
            a.poll_with(at_micros(time), &mut sink_a);
        }
        most = most.max(b.poll_with(at_micros(time), &mut sink_b).frames_in);
    }
    assert_eq!(sink_b.got.len(), 300);
    // It is looked whether the turn is over after every 16 frames.
    assert_eq!(most, LONG_IN_A_TURN.next_multiple_of(16));
}
