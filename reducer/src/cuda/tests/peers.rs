use core::ffi::c_int;
use std::io::Write;

use cudarc::driver::sys::{CUstream, culib};

use super::super::*;
use super::harness::*;

/// Names what the child process of a test is to open.
const PEER: &str = "SHOUTER_TEST_CUDA_PEER";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn another_process_reads_and_writes_our_memory() {
    let Some((_alone, cuda, context)) = device() else { return };
    let buffer = DeviceBuffer::new(&context, 8192).unwrap();
    let host = Pinned::new(&context, 8192).unwrap();
    let mut copier = Copier::new(&context).unwrap();
    fill(&host, &[3; 8192]);
    let at = host.as_ptr().as_ptr() as u64;
    // SAFETY: both have 8192 bytes, and outlive the waits.
    let fence = unsafe { copier.copy(buffer.address(), at, 8192) }.unwrap();
    until("the copy", || copier.is_done(fence));

    let memory = MemoryHandle::export(&context, &cuda.classify(buffer.address() + 100).unwrap()).unwrap();
    assert_eq!(MemoryHandle::from_bytes(&memory.to_bytes()), Some(memory));
    let message = hex(&memory.to_bytes());
    let (success, output_text) = again("peers::the_other_process", &[(PEER, &message)]);
    assert!(success && output_text.contains("the peer has written"), "{output_text}");
    // SAFETY: as above.
    let fence = unsafe { copier.copy(at, buffer.address(), 8192) }.unwrap();
    until("the copy back", || copier.is_done(fence));
    let mut expected = vec![3; 8192];
    expected[100..200].fill(4);
    assert_eq!(bytes(&host, 0, 8192), expected);
}

/// The child of the test above; as a test of its own it does nothing.
#[test]
fn the_other_process() {
    let Ok(message) = std::env::var(PEER) else { return };
    let memory = MemoryHandle::from_bytes(&unhex(&message)).unwrap();
    let (_alone, _, context) = device().unwrap();
    let mut peers = PeerMemory::new(&context);
    let address = peers.open(&memory).unwrap();
    assert_eq!(peers.open(&memory).unwrap(), address, "opened once");
    let mut copier = Copier::new(&context).unwrap();
    let host = Pinned::new(&context, 200).unwrap();
    let at = host.as_ptr().as_ptr() as u64;
    // SAFETY: the other process's buffer has so many bytes, and it waits for us.
    let fence = unsafe { copier.copy(at, address, 100) }.unwrap();
    until("the read", || copier.is_done(fence));
    assert_eq!(bytes(&host, 0, 100), [3; 100]);
    fill(&host, &[4; 100]);
    // SAFETY: as above.
    let fence = unsafe { copier.copy(address, at, 100) }.unwrap();
    until("the write", || copier.is_done(fence));
    peers.forget(&memory).unwrap();
    writeln!(std::io::stdout(), "the peer has written").unwrap();
}

/// Also where all that is asked for is open already, as in a trainer whose tensors stay.
#[test]
fn what_is_not_asked_for_any_more_is_closed() {
    let Some((_alone, cuda, context)) = device() else { return };
    let buffers = [(); 2].map(|()| DeviceBuffer::new(&context, 4096).unwrap());
    let handles = buffers.each_ref().map(|buffer| {
        let pointer = cuda.classify(buffer.address()).unwrap();
        hex(&MemoryHandle::export(&context, &pointer).unwrap().to_bytes())
    });
    let (success, output_text) =
        again("peers::the_one_that_asks_for_one_of_two", &[(PEER, &handles.join("."))]);
    assert!(success && output_text.contains("only one is open"), "{output_text}");
}

/// The child of the test above; as a test of its own it does nothing.
#[test]
fn the_one_that_asks_for_one_of_two() {
    let Ok(message) = std::env::var(PEER) else { return };
    let (kept, left) = message.split_once('.').unwrap();
    let [kept, left] = [kept, left].map(|text| MemoryHandle::from_bytes(&unhex(text)).unwrap());
    let (_alone, cuda, context) = device().unwrap();
    let mut peers = PeerMemory::new(&context);
    let [stays, goes] = [kept, left].map(|handle| peers.open(&handle).unwrap());
    assert_eq!(cuda.classify(goes).unwrap().kind, PointerKind::Device);
    for _ in 0..(1 << 16) + (1 << 13) {
        assert_eq!(peers.open(&kept).unwrap(), stays);
    }
    assert_eq!(cuda.classify(stays).unwrap().kind, PointerKind::Device);
    assert_eq!(cuda.classify(goes).unwrap().kind, PointerKind::Unknown);
    writeln!(std::io::stdout(), "only one is open").unwrap();
}

#[test]
fn what_cannot_be_shared_is_refused_with_a_reason() {
    let Some((_alone, cuda, context)) = device() else { return };
    let pinned = Pinned::new(&context, 64).unwrap();
    let address = pinned.as_ptr().as_ptr() as u64;
    let refused = MemoryHandle::export(&context, &cuda.classify(address).unwrap()).unwrap_err();
    assert_eq!(refused, CudaError::NoIpcHandle { address });
    assert!(refused.to_string().contains("expandable_segments:False"));
    // No handle of any process.
    let bytes = [[0x5a; 64].as_slice(), &[0; 8], &1u64.to_le_bytes(), &[0; 8]].concat();
    let memory = MemoryHandle::from_bytes(&bytes);
    let refused = PeerMemory::new(&context).open(&memory.unwrap()).unwrap_err();
    assert!(matches!(refused, CudaError::IpcRefused { .. }), "{refused}");
}

#[test]
fn pool_memory_has_no_handle_and_the_primary_context() {
    let Some((_alone, cuda, context)) = device() else { return };
    type Alloc = unsafe extern "C" fn(*mut u64, usize, CUstream) -> c_int;
    type Free = unsafe extern "C" fn(u64, CUstream) -> c_int;
    // SAFETY: the signatures are those of the driver's manual.
    let (alloc, free) = unsafe {
        (culib().get::<Alloc>(b"cuMemAllocAsync").unwrap(), culib().get::<Free>(b"cuMemFreeAsync").unwrap())
    };
    let stream = Stream::new(&context).unwrap();
    let mut address = 0;
    let _entered = context.enter().unwrap();
    // SAFETY: `address` is writable, the stream is alive.
    match unsafe { alloc(&mut address, 1000, stream.as_raw() as CUstream) } {
        0 => (),
        801 => return println!("skipped: the device has no memory pools"),
        code => panic!("cuMemAllocAsync: {code}"),
    }
    until("the allocation", || stream.is_done());
    let found = cuda.classify_range(address, 1000).unwrap();
    assert_eq!(found.kind, PointerKind::Device);
    assert!(Context::of(cuda, &found).unwrap().is(&context));
    assert_eq!(MemoryHandle::export(&context, &found).unwrap_err(), CudaError::NoIpcHandle { address });
    // SAFETY: allocated above.
    assert_eq!(unsafe { free(address, stream.as_raw() as CUstream) }, 0);
    until("the free", || stream.is_done());
}

#[test]
fn messages_that_are_no_handle_are_refused() {
    let bytes = [[1; 64].as_slice(), &7u64.to_le_bytes(), &8u64.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(MemoryHandle::from_bytes(&bytes).map(|handle| handle.len()), Some(1));
    assert!(MemoryHandle::from_bytes(&bytes[1..]).is_none());
    assert!(MemoryHandle::from_bytes(&[bytes.as_slice(), &[0]].concat()).is_none());
    let outside = [[1; 64].as_slice(), &8u64.to_le_bytes(), &8u64.to_le_bytes(), &[0; 8]].concat();
    assert!(MemoryHandle::from_bytes(&outside).is_none());
}

#[test]
fn a_dmabuf_covers_whole_pages() {
    let Some((_alone, cuda, context)) = device() else { return };
    if !cuda.devices().unwrap()[0].dmabuf {
        return println!("skipped: the device gives no dmabuf");
    }
    let buffer = DeviceBuffer::new(&context, 4 << 20).unwrap();
    let dmabuf = Dmabuf::export(&context, buffer.address() + 5000, 10_000, 4096).unwrap();
    assert_eq!((dmabuf.offset, dmabuf.len), ((buffer.address() + 5000) % 4096, 10_000));
    let beyond = Dmabuf::export(&context, buffer.address() + (4 << 20) - 10, 1 << 30, 4096).unwrap_err();
    assert!(matches!(beyond, CudaError::Range { .. }), "{beyond}");
    assert_eq!(Dmabuf::export(&context, buffer.address(), 0, 4096).unwrap_err(), CudaError::Empty);
}
