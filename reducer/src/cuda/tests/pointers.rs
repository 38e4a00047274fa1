use core::ptr::NonNull;

use super::super::*;
use super::harness::*;

#[test]
fn addresses_are_told_apart() {
    let Some((_alone, cuda, context)) = device() else { return };
    let mut host = vec![0u8; 10_000];
    let host = host.as_mut_ptr() as u64;
    assert_eq!(cuda.classify(host).unwrap().kind, PointerKind::Unknown);
    assert_eq!(cuda.classify_range(host, 1).unwrap_err(), CudaError::NotDevice { address: host });

    let pinned = Pinned::new(&context, 10_000).unwrap();
    let inside = pinned.as_ptr().as_ptr() as u64 + 77;
    assert_eq!(cuda.classify(inside).unwrap().kind, PointerKind::Pinned);
    assert_eq!(context.address_of_pinned(inside).unwrap(), pinned.device_address() + 77);

    let buffer = DeviceBuffer::new(&context, 10_000).unwrap();
    let found = cuda.classify_range(buffer.address() + 1234, 10_000 - 1234).unwrap();
    assert_eq!((found.kind, found.device), (PointerKind::Device, Some(0)));
    assert_eq!((found.base, found.offset()), (buffer.address(), 1234));
    assert!(found.size >= 10_000 && found.legacy_ipc);
    assert!(Context::of(cuda, &found).unwrap().is(&context));
}

#[test]
fn ranges_beyond_their_allocation_are_refused() {
    let Some((_alone, cuda, context)) = device() else { return };
    let buffer = DeviceBuffer::new(&context, 4096).unwrap();
    let size = cuda.classify(buffer.address()).unwrap().size;
    assert!(cuda.classify_range(buffer.address(), size).is_ok());
    assert!(cuda.classify_range(buffer.address() + size - 1, 0).is_ok());
    for (offset, bytes) in [(0, size + 1), (size - 1, 2), (1, u64::MAX), (8, u64::MAX - buffer.address())] {
        let error = cuda.classify_range(buffer.address() + offset, bytes).unwrap_err();
        assert!(matches!(error, CudaError::Range { .. }), "{offset} {bytes}: {error}");
    }
}

#[test]
fn freed_memory_is_unknown() {
    let Some((_alone, cuda, context)) = device() else { return };
    // Two allocations, so that the second's end does not take the first one's pages with it.
    let keep = DeviceBuffer::new(&context, 1 << 20).unwrap();
    let buffer = DeviceBuffer::new(&context, 32 << 20).unwrap();
    let address = buffer.address();
    drop(buffer);
    let error = cuda.classify_range(address, 1).unwrap_err();
    assert_eq!(error, CudaError::NotDevice { address });
    let mut copier = Copier::new(&context).unwrap();
    // SAFETY: the source was freed, which is found out before anything is copied.
    assert!(unsafe { copier.copy(keep.address(), address, 16) }.is_err());
}

#[test]
fn host_memory_is_registered_and_unregistered() {
    let Some((_alone, cuda, context)) = device() else { return };
    let mut memory = vec![0u8; 1 << 20];
    let base = NonNull::new(memory.as_mut_ptr()).unwrap();
    let address = base.as_ptr() as u64;
    // SAFETY: the vector outlives the registration.
    let registered = unsafe { Registered::new(&context, base, memory.len()) }.unwrap();
    assert_eq!(cuda.classify(address + 5).unwrap().kind, PointerKind::Pinned);
    assert_eq!(context.address_of_pinned(address + 5).unwrap(), registered.device_address() + 5);
    // SAFETY: as above.
    let again = unsafe { Registered::new(&context, base, memory.len()) }.unwrap_err();
    assert_eq!(again, CudaError::AlreadyRegistered);
    assert_eq!(cuda.classify(address).unwrap().kind, PointerKind::Pinned);
    drop(registered);
    assert_eq!(cuda.classify(address).unwrap().kind, PointerKind::Unknown);
}

#[test]
fn contexts_are_left_as_they_were() {
    let Some((_alone, cuda, context)) = device() else { return };
    let before = current();
    let mode = exchange(cuda, 1);
    {
        let _entered = context.enter().unwrap();
        assert_eq!(current() as u64, context.as_raw());
        assert_eq!(exchange(cuda, 2), 2, "the capture mode is relaxed");
        let again = context.enter().unwrap();
        drop(again);
        assert_eq!(current() as u64, context.as_raw());
    }
    let buffer = DeviceBuffer::new(&context, 100).unwrap();
    let pinned = Pinned::new(&context, 100).unwrap();
    let mut copier = Copier::new(&context).unwrap();
    // SAFETY: both have 100 bytes, and outlive the wait.
    let fence = unsafe { copier.copy(buffer.address(), pinned.as_ptr().as_ptr() as u64, 100) }.unwrap();
    until("the copy", || copier.is_done(fence));
    // SAFETY: refused, since ordinary memory is not page-locked.
    unsafe { copier.copy(buffer.address(), core::ptr::from_ref(&mode) as u64, 4) }.unwrap_err();
    drop((copier, buffer, pinned));
    assert_eq!(current(), before);
    assert_eq!(exchange(cuda, mode), 1, "the capture mode is the trainer's again");
}

#[test]
fn a_trainers_own_context_is_used_and_its_streams_kept_apart() {
    let Some((_alone, cuda, context)) = device() else { return };
    let foreign = Foreign::new(cuda);
    {
        // SAFETY: the context is alive.
        unsafe { cuda.api.cuCtxPushCurrent_v2(foreign.0) }.ok().unwrap();
        let own = foreign.context(cuda);
        assert_eq!((own.as_raw(), own.ordinal()), (foreign.0 as u64, 0));
        assert!(!own.is(&context));
        let buffer = DeviceBuffer::new(&own, 64).unwrap();
        let found = cuda.classify(buffer.address()).unwrap();
        assert!(Context::of(cuda, &found).unwrap().is(&own));
        let stream = Stream::new(&own).unwrap();
        // SAFETY: the stream is alive.
        let borrowed = unsafe { Stream::borrow(&own, stream.as_raw()) }.unwrap();
        assert!(borrowed.is_done().unwrap());
        // SAFETY: the stream is alive, but of another context.
        let refused = unsafe { Stream::borrow(&context, stream.as_raw()) }.unwrap_err();
        assert!(matches!(refused, CudaError::ForeignStream { .. }), "{refused}");
        let error = CudaEvent::new(&context).unwrap().record(&stream).unwrap_err();
        assert!(matches!(error, CudaError::ForeignStream { .. }), "{error}");
        assert_eq!(current(), foreign.0);
    }
    let mut popped = core::ptr::null_mut();
    // SAFETY: takes off what was put on above.
    unsafe { cuda.api.cuCtxPopCurrent_v2(&mut popped) }.ok().unwrap();
}

#[test]
fn no_bytes_are_no_allocation() {
    let Some((_alone, _, context)) = device() else { return };
    assert_eq!(Pinned::new(&context, 0).unwrap_err(), CudaError::Empty);
    assert_eq!(DeviceBuffer::new(&context, 0).unwrap_err(), CudaError::Empty);
    // SAFETY: nothing is registered.
    assert_eq!(unsafe { Registered::new(&context, NonNull::dangling(), 0) }.unwrap_err(), CudaError::Empty);
    // More than any device has.
    let error = DeviceBuffer::new(&context, 1 << 50).unwrap_err();
    assert!(matches!(error, CudaError::OutOfMemory { .. }), "{error}");
}
