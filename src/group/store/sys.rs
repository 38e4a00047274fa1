//! PMIx by its C functions, the launcher's socket, and handlers for the end of the process.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::{io, ptr};

use libloading::os::unix::{Library, Symbol};

/// A descriptor of this process's own for the socket that the launcher has left open at `fd`.
pub(super) fn inherited_socket(fd: RawFd) -> io::Result<UnixStream> {
    // F_DUPFD fails for a descriptor that is not open.
    // SAFETY: it takes numbers and touches no memory.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if own < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has made this descriptor, which nobody else has.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(own) });
    Ok(socket)
}

/// Lets `end` run when this process calls `exit`, or returns from `main`.
pub(super) fn at_exit(end: extern "C" fn()) {
    static ONCE: Once = Once::new();
    // SAFETY: the function is static and takes nothing.
    ONCE.call_once(|| unsafe {
        libc::atexit(end);
    });
}

/// `pmix_proc_t`: a job's name, ended by a zero, and a rank of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    space: [u8; 256],
    rank: u32,
}

/// `pmix_value_t`, whose union has at most 24 bytes, aligned to 8.
#[repr(C)]
struct Value {
    kind: u16,
    data: [usize; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [u8; 512],
    flags: u32,
    value: Value,
}

/// `PMIX_BOOL`.
const BOOL: u16 = 1;
/// `PMIX_BYTE_OBJECT`: an address and a length.
const BYTES: u16 = 27;
/// `PMIX_GLOBAL`: for ranks of this host and of others.
const GLOBAL: u8 = 3;
/// `PMIX_COLLECT_DATA`: every rank gets the values of all.
const COLLECT: &[u8] = b"pmix.collect";

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Proc, usize, *const Info, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;

/// The library, initialised. Its calls may come from any thread, one at a time or together (its own lock).
pub(super) struct Pmix {
    own: Proc,
    finalize: Symbol<Finalize>,
    put: Symbol<Put>,
    commit: Symbol<Commit>,
    fence: Symbol<Fence>,
    get: Symbol<Get>,
    /// Keeps the functions. The library has threads of its own: it is never unloaded.
    _library: std::mem::ManuallyDrop<Library>,
}

/// The text of a key, ended by a zero.
fn text(key: &str) -> Result<std::ffi::CString, String> {
    std::ffi::CString::new(key).map_err(|_| "a key has a zero in it".to_owned())
}

fn succeeded(what: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{what} has failed with status {status}")) }
}

impl Pmix {
    /// Opens the library, and registers this process with the launcher.
    pub(super) fn open() -> Result<Self, String> {
        let places = ["PMIX_INSTALL_PREFIX", "OPAL_PREFIX"];
        let installed =
            places.iter().filter_map(|place| Some(std::env::var(place).ok()? + "/lib/libpmix.so.2"));
        let mut found = Err("no file of this name".to_owned());
        for name in ["libpmix.so.2".to_owned(), "libpmix.so".to_owned()].into_iter().chain(installed) {
            // SAFETY: PMIx's library does nothing when it is loaded but to set its own variables.
            found = unsafe { Library::new(&name) }.map_err(|why| why.to_string());
            if found.is_ok() {
                break;
            }
        }
        let why = |why: String| format!("libpmix cannot be opened: {why}; install it (Debian: libpmix2)");
        let library = found.map_err(why)?;
        let missing = |why: libloading::Error| format!("libpmix has not all functions: {why}");
        // SAFETY: the types are those of pmix.h since version 2, whose functions these are.
        let (init, finalize, put, commit, fence, get) = unsafe {
            (
                library.get::<Init>(b"PMIx_Init").map_err(missing)?,
                library.get::<Finalize>(b"PMIx_Finalize").map_err(missing)?,
                library.get::<Put>(b"PMIx_Put").map_err(missing)?,
                library.get::<Commit>(b"PMIx_Commit").map_err(missing)?,
                library.get::<Fence>(b"PMIx_Fence").map_err(missing)?,
                library.get::<Get>(b"PMIx_Get").map_err(missing)?,
            )
        };
        let mut own = Proc { space: [0; 256], rank: 0 };
        let library = std::mem::ManuallyDrop::new(library);
        // SAFETY: `own` is a whole `pmix_proc_t`, which it fills in; there are no infos.
        succeeded("PMIx_Init", unsafe { init(&mut own, ptr::null_mut(), 0) })?;
        Ok(Self { own, finalize, put, commit, fence, get, _library: library })
    }

    /// Puts a value where the next fence shows it to all.
    pub(super) fn put(&self, key: &str, value: &[u8]) -> Result<(), String> {
        let key = text(key)?;
        let mut object = Value { kind: BYTES, data: [value.as_ptr() as usize, value.len(), 0] };
        // SAFETY: key and value are whole and live through the call, which copies both.
        succeeded("PMIx_Put", unsafe { (self.put)(GLOBAL, key.as_ptr(), &mut object) })
    }

    /// Waits for all ranks, and gets their values.
    pub(super) fn fence(&self) -> Result<(), String> {
        // SAFETY: it takes nothing.
        succeeded("PMIx_Commit", unsafe { (self.commit)() })?;
        // A bool is the first byte of the union.
        let mut yes = [0; size_of::<usize>()];
        yes[0] = 1;
        let value = Value { kind: BOOL, data: [usize::from_ne_bytes(yes), 0, 0] };
        let mut info = Info { key: [0; 512], flags: 0, value };
        info.key[..COLLECT.len()].copy_from_slice(COLLECT);
        // SAFETY: no ranks are named, which means all; the info is whole and lives through the call.
        succeeded("PMIx_Fence", unsafe { (self.fence)(ptr::null(), 0, &info, 1) })
    }

    /// The value that a rank has put.
    pub(super) fn get(&self, of: u32, key: &str) -> Result<Vec<u8>, String> {
        let key = text(key)?;
        let of = Proc { rank: of, ..self.own };
        let mut found: *mut Value = ptr::null_mut();
        // SAFETY: rank and key are whole and live through the call; it sets `found` to a value that the caller frees.
        succeeded("PMIx_Get", unsafe { (self.get)(&of, key.as_ptr(), ptr::null(), 0, &mut found) })?;
        if found.is_null() {
            return Err("PMIx_Get gave no value".into());
        }
        // SAFETY: the library has made the value by malloc, and its bytes (at `data[0]`, `data[1]` of them) likewise.
        unsafe {
            let Value { kind, data: [bytes, len, _] } = ptr::read(found);
            libc::free(found.cast::<c_void>());
            if kind != BYTES {
                return Err(format!("PMIx_Get gave a value of type {kind}"));
            }
            let bytes = bytes as *mut u8;
            let copied = if len == 0 { Vec::new() } else { std::slice::from_raw_parts(bytes, len).to_vec() };
            libc::free(bytes.cast::<c_void>());
            Ok(copied)
        }
    }

    /// Says that this process ends well.
    pub(super) fn finish(&self) -> Result<(), String> {
        // SAFETY: there are no infos.
        succeeded("PMIx_Finalize", unsafe { (self.finalize)(ptr::null(), 0) })
    }
}
