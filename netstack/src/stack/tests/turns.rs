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

/// The datagrams with data that so many polls make. What a session has to report leaves besides.
fn polls(stack: &mut Stack<Taking>, ids: &[SessionId], count: u64) -> Vec<usize> {
    let all =
        |stack: &Stack<Taking>| ids.iter().map(|id| stack.rud().counters(*id).sent as usize).sum::<usize>();
    let mut made = vec![];
    for poll in 0..count {
        let before = all(stack);
        stack.poll_with(at_micros(1 + poll), &mut Collect::default());
        made.push(all(stack) - before);
    }
    made
}

#[test]
fn a_poll_sends_a_turn_of_long_datagrams() {
    let (mut stack, ids) = stack(1, usize::MAX);
    queue(&mut stack, ids[0], 100, LONG);
    assert_eq!(polls(&mut stack, &ids, 5), [LONG_IN_A_TURN, LONG_IN_A_TURN, LONG_IN_A_TURN, 1, 0]);
}

#[test]
fn a_poll_sends_a_turn_of_short_datagrams() {
    let (mut stack, ids) = stack(1, usize::MAX);
    stack.rud_mut().set_bundles(ids[0], false);
    queue(&mut stack, ids[0], 200, 8);
    assert_eq!(polls(&mut stack, &ids, 5), [SHORT_IN_A_TURN, SHORT_IN_A_TURN, SHORT_IN_A_TURN, 8, 0]);
}

/// Datagrams that are made say what had come until then: those that would wait for the device are not made.
#[test]
fn a_turn_of_datagrams_waits_for_a_device_that_takes_none() {
    let (mut stack, ids) = stack(2, 0);
    for id in &ids {
        queue(&mut stack, *id, 200, LONG);
    }
    assert_eq!(polls(&mut stack, &ids, 4), [LONG_IN_A_TURN, 0, 0, 0]);
    // Room for some: as many more are made.
    stack.device_mut(PortId(0)).unwrap().room = 20;
    let made = polls(&mut stack, &ids, 4);
    assert!(made[0] == 0 && (18..=20).contains(&made[1]) && made[2..] == [0, 0], "{made:?}");
    assert_eq!(stack.device(PortId(0)).unwrap().taken, [20]);
}

#[test]
fn sessions_take_turns() {
    let (mut stack, ids) = stack(3, usize::MAX);
    for id in &ids {
        queue(&mut stack, *id, 200, LONG);
    }
    polls(&mut stack, &ids, 3);
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
    assert_eq!(most, (128 << 10) / usize::from(MTU));
}

/// Acknowledgements of one session do not wait for the data of another.
#[test]
fn reports_leave_when_the_turn_is_over() {
    let port = |address| PortConfig::new(address, 24, MTU);
    let (device_a, device_b) = Loopback::pair(MTU, 256);
    let mut settings = StackConfig::new(1).with_rud(RUD_PORT);
    settings.rud.initial_window = 960;
    let (mut a, mut b) = (Stack::new(settings), stack_of(device_b, port(B)));
    a.add_port(device_a, port(A)).unwrap();
    let (mut sink_a, mut sink_b) = (Collect::default(), Collect::default());
    let (mut at_a, mut at_b) = (vec![], vec![]);
    for number in [1, 3, 5] {
        at_a.push(session(&mut a, A, B, (number, number + 1)));
        at_b.push(session(&mut b, B, A, (number + 1, number)));
    }
    // Sessions begin, and neighbours are found.
    at_a.iter().for_each(|id| queue(&mut a, *id, 1, 8));
    at_b.iter().for_each(|id| queue(&mut b, *id, 1, 8));
    for time in 0..2_000 {
        a.poll_with(at_micros(time), &mut sink_a);
        b.poll_with(at_micros(time), &mut sink_b);
    }
    assert_eq!((sink_a.got.len(), sink_b.got.len()), (3, 3));
    let before: Vec<u64> = at_a.iter().map(|id| a.rud().counters(*id).acks_sent).collect();
    // Two sessions owe an acknowledgement, and the data of the first fills turns.
    queue(&mut a, at_a[0], 200, LONG);
    at_b[1..].iter().for_each(|id| queue(&mut b, *id, 1, 8));
    b.poll_with(at_micros(2_000), &mut sink_b);
    a.poll_with(at_micros(2_000), &mut sink_a);
    a.poll_with(at_micros(2_050), &mut sink_a);
    assert!(a.rud().wants_transmit());
    let after: Vec<u64> = at_a.iter().map(|id| a.rud().counters(*id).acks_sent).collect();
    assert_eq!(after[1..], [before[1] + 1, before[2] + 1]);
}

/// Datagrams of UDP that go before do not take RUD's turn.
#[test]
fn rud_has_a_turn_beside_udp() {
    let (mut stack, ids) = stack(1, usize::MAX);
    let socket = stack.udp_mut().bind(SocketAddrV4::new(A, 0), SocketConfig::default()).unwrap();
    queue(&mut stack, ids[0], 200, LONG);
    for time in 0..3 {
        let to = SocketAddrV4::new(B, 5000);
        for _ in 0..100 {
            let payload = Payload::Extent(region().extent(0, 1000).unwrap());
            stack.udp_send_to(at_micros(time), socket, to, b"", payload).unwrap();
        }
        stack.poll_with(at_micros(1 + time), &mut Collect::default());
    }
    assert_eq!(stack.rud().counters(ids[0]).sent, 3 * LONG_IN_A_TURN as u64);
}

/// Nor do they where they wait for the device: then RUD shares the room that it makes.
#[test]
fn rud_has_room_beside_udp_that_waits() {
    let (mut stack, ids) = stack(1, 0);
    let socket = stack.udp_mut().bind(SocketAddrV4::new(A, 0), SocketConfig::default()).unwrap();
    queue(&mut stack, ids[0], 600, LONG);
    for time in 0..60 {
        let payload = || Payload::Extent(region().extent(0, 1000).unwrap());
        let to = SocketAddrV4::new(B, 5000);
        while stack.udp_send_to(at_micros(time), socket, to, b"", payload()).is_ok() {}
        stack.device_mut(PortId(0)).unwrap().room = 20;
        stack.poll_with(at_micros(1 + time), &mut Collect::default());
    }
    let sent = stack.rud().counters(ids[0]).sent;
    assert!((100..1_000).contains(&sent), "{sent} of 1200 frames");
}

#[test]
fn what_is_left_of_a_turn_is_due_at_once() {
    let (mut stack, ids) = stack(1, usize::MAX);
    queue(&mut stack, ids[0], 2 * LONG_IN_A_TURN as u64, LONG);
    stack.poll_with(at_micros(7), &mut Collect::default());
    assert_eq!(stack.next_deadline(), Some(at_micros(7)));
    stack.poll_with(at_micros(8), &mut Collect::default());
    stack.poll_with(at_micros(9), &mut Collect::default());
    assert!(stack.next_deadline() > Some(at_micros(9)));
    // What a device does not take has no deadline of its own.
    stack.device_mut(PortId(0)).unwrap().room = 0;
    queue(&mut stack, ids[0], 2 * LONG_IN_A_TURN as u64, LONG);
    stack.poll_with(at_micros(10), &mut Collect::default());
    assert!(stack.is_backlogged() && stack.next_deadline() > Some(at_micros(10)));
}

#[test]
fn sealed_datagrams_have_turns_too() {
    let (mut stack, _) = stack(0, usize::MAX);
    let sealed = session_with(&mut stack, A, B, (2, 3), Some(SealSecret::new([5; 32])));
    queue(&mut stack, sealed, 100, LONG);
    assert_eq!(polls(&mut stack, &[sealed], 2), [LONG_IN_A_TURN; 2]);
}
