use cudarc::driver::sys::{
    CUgraph, CUstreamCaptureMode, cuGraphDestroy, cuStreamBeginCapture_v2, cuStreamEndCapture,
};

use super::super::*;
use super::harness::*;
use crate::transport::StreamEvent;

#[test]
fn events_follow_their_stream() {
    let Some((_alone, _, context)) = device() else { return };
    let stream = Stream::new(&context).unwrap();
    let event = CudaEvent::new(&context).unwrap();
    let gate = Gate::new(&context);
    assert!(event.is_done().unwrap(), "nothing was recorded");
    gate.hold(&stream);
    event.record(&stream).unwrap();
    stays_false("held up", || event.is_done());
    stays_false("the stream", || stream.is_done());
    gate.open();
    until("the event", || event.is_done());
    until("the stream", || stream.is_done());
}

#[test]
fn timing_events_tell_the_time_between_them() {
    let Some((_alone, _, context)) = device() else { return };
    let stream = Stream::new(&context).unwrap();
    let (start, end) = (CudaEvent::timing(&context).unwrap(), CudaEvent::timing(&context).unwrap());
    let gate = Gate::new(&context);
    assert!(end.seconds_since(&start).is_err(), "nothing was recorded");
    start.record(&stream).unwrap();
    until("the start", || start.is_done());
    gate.hold(&stream);
    end.record(&stream).unwrap();
    assert!(end.seconds_since(&start).is_err(), "not done");
    std::thread::sleep(core::time::Duration::from_millis(5));
    gate.open();
    until("the end", || end.is_done());
    // The gate was shut for 5 ms at least; nothing here takes a minute.
    let seconds = end.seconds_since(&start).unwrap();
    assert!((0.0045..60.0).contains(&seconds), "{seconds} s");
    let plain = CudaEvent::new(&context).unwrap();
    plain.record(&stream).unwrap();
    assert!(plain.seconds_since(&start).is_err(), "without timing");
}

/// An event after the trainer's work, as the executor asks for it before the first copy of a tensor.
fn recorded(copier: &mut Copier, stream: &Stream) -> Result<StreamEvent, CudaError> {
    let event = copier.event()?;
    event.record(stream)?;
    Ok(copier.expect(event))
}

#[test]
fn an_event_is_reached_when_the_trainers_work_is_done_and_holds_up_nothing_else() {
    let Some((_alone, _, context)) = device() else { return };
    let trainer = Stream::new(&context).unwrap();
    // SAFETY: `trainer` is dropped after this.
    let stream = unsafe { Stream::borrow(&context, trainer.as_raw()) }.unwrap();
    let (host, device) = (Pinned::new(&context, 64).unwrap(), DeviceBuffer::new(&context, 64).unwrap());
    let mut copier = Copier::new(&context).unwrap();
    let early = recorded(&mut copier, &stream).unwrap();
    let gate = Gate::new(&context);
    gate.hold(&trainer);
    // SAFETY: the word lies in the buffer, which outlives the waits.
    unsafe { write_value(&trainer, device.address(), 0x0403_0201) };
    let late = recorded(&mut copier, &stream).unwrap();
    until("the early event", || copier.is_reached(early));
    // SAFETY: four bytes on both sides, which outlive the waits; other bytes than the trainer's.
    let other = unsafe { copier.copy(host.as_ptr().as_ptr() as u64 + 8, device.address() + 8, 4) }.unwrap();
    until("another tensor's copy", || copier.is_done(other));
    stays_false("the late event", || copier.is_reached(late));
    gate.open();
    until("the late event", || copier.is_reached(late));
    // SAFETY: as above.
    let fence = unsafe { copier.copy(host.as_ptr().as_ptr() as u64, device.address(), 4) }.unwrap();
    until("the copy", || copier.is_done(fence));
    assert_eq!(bytes(&host, 0, 4), [1, 2, 3, 4]);
}

#[test]
fn default_streams_are_streams_too() {
    let Some((_alone, _, context)) = device() else { return };
    let host = Pinned::new(&context, 64).unwrap();
    let device = DeviceBuffer::new(&context, 64).unwrap();
    let mut copier = Copier::new(&context).unwrap();
    for (at, handle) in [0, 1, Stream::PER_THREAD].into_iter().enumerate() {
        // SAFETY: default streams do not end before their context.
        let stream = unsafe { Stream::borrow(&context, handle) }.unwrap();
        assert!(!stream.capturing(&context.enter().unwrap()).unwrap());
        // SAFETY: the word lies in the buffer.
        unsafe { write_value(&stream, device.address(), at as u32 + 1) };
        let event = recorded(&mut copier, &stream).unwrap();
        until("the event", || copier.is_reached(event));
        // SAFETY: four bytes on both sides.
        let fence = unsafe { copier.copy(host.as_ptr().as_ptr() as u64, device.address(), 4) }.unwrap();
        until("the copy", || copier.is_done(fence));
        assert_eq!(bytes(&host, 0, 4), [at as u8 + 1, 0, 0, 0], "stream {handle}");
    }
}

#[test]
fn a_capture_is_refused_and_stays_valid() {
    let Some((_alone, _, context)) = device() else { return };
    let stream = Stream::new(&context).unwrap();
    let mut copier = Copier::new(&context).unwrap();
    let (host, device) = (Pinned::new(&context, 64).unwrap(), DeviceBuffer::new(&context, 64).unwrap());
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let raw = stream.as_raw() as *mut _;
    {
        let _entered = context.enter().unwrap();
        // SAFETY: the stream is alive.
        assert_eq!(unsafe { cuStreamBeginCapture_v2(raw, mode) } as u32, 0);
    }
    assert!(stream.capturing(&context.enter().unwrap()).unwrap());
    assert_eq!(CudaEvent::new(&context).unwrap().record(&stream).unwrap_err(), CudaError::Capturing);
    assert_eq!(recorded(&mut copier, &stream).unwrap_err(), CudaError::Capturing);
    // Calls that do not concern the stream go on, allocations included.
    // SAFETY: both sides outlive the wait.
    let fence = unsafe { copier.copy(device.address(), host.as_ptr().as_ptr() as u64, 64) }.unwrap();
    drop(Pinned::new(&context, 100).unwrap());
    until("a copy during the capture", || copier.is_done(fence));
    let mut graph: CUgraph = core::ptr::null_mut();
    let _entered = context.enter().unwrap();
    // SAFETY: the stream is alive, `graph` is writable.
    assert_eq!(unsafe { cuStreamEndCapture(raw, &mut graph) } as u32, 0, "the capture is still valid");
    // SAFETY: made just now.
    unsafe { cuGraphDestroy(graph) };
}
