//! The UNIX socket of an embedded link: whether a process serves it, making room for one, and removing it.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, io, mem, thread};

use super::DeviceSpec;
use super::error::PortError;
use super::port::PAUSE;
use super::sys::{self, StartedPort};

/// "Protocol wrong type for socket", errno(3).
const EPROTOTYPE: i32 = 91;

/// Time that the other side of an embedded link has to answer when this side closes.
const FAREWELL: Duration = Duration::from_millis(500);

/// A memif server that is ready takes its client within this time, or the machine is very busy.
const TAKEN: Duration = Duration::from_secs(1);

/// Whether its server takes a memif client. A server has its socket before it has started its port; until then it turns clients away, whose
/// driver does not try again.
pub(super) fn is_taken(client: &StartedPort) -> bool {
    let begin = Instant::now();
    while !client.link_up() {
        if begin.elapsed() >= TAKEN {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Closes the client of an embedded link. vhost-user requests the positions of the rings from the server and waits for
/// the reply; a server that was stopped sends none, so after a time-out this side shuts the socket down.
pub(super) fn close_client(started: StartedPort, path: &Path) {
    thread::scope(|scope| {
        let (closed, wait) = mpsc::channel::<()>();
        let closing = thread::Builder::new().name("port-close".into()).spawn_scoped(scope, move || {
            mem::drop(started);
            mem::drop(closed);
        });
        // Without a thread the closure was dropped, and the port with it.
        if closing.is_ok() && wait.recv_timeout(FAREWELL) == Err(mpsc::RecvTimeoutError::Timeout) {
            sys::hang_up(path);
        }
    });
}

/// The error of a client whose server's socket is absent or silent.
pub(super) fn not_yet(device: &DeviceSpec, source: io::Error) -> PortError {
    let device = device.clone();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => PortError::NotYet { device, source },
        _ => PortError::Socket { device, what: "connecting", source },
    }
}

/// Whether a process has the socket open: connects, and hangs up.
pub(super) fn is_served(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path) {
        // memif's sockets are of type SOCK_SEQPACKET: the kernel returns this only for one that a process holds open
        // (unix(7)).
        Err(e) if e.raw_os_error() == Some(EPROTOTYPE) => Ok(()),
        other => other.map(drop),
    }
}

/// Lets the vhost socket at `path` take connections now rather than within a second. No harm is done if it fails.
pub(super) fn serve_at_once(path: &Path) {
    let wake = format!("{}.wake", path.display());
    let _ = fs::remove_file(&wake);
    if let Ok(_listener) = UnixListener::bind(&wake) {
        sys::wake_vhost(&wake);
        let _ = fs::remove_file(&wake);
    }
}

/// Makes room for a socket at `path`: removes one without a listener, and nothing else.
pub(super) fn remove_stale_socket(device: &DeviceSpec, path: &Path) -> Result<(), PortError> {
    let error = |what, source| PortError::Socket { device: device.clone(), what, source };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let parent =
                path.parent().filter(|p| !p.as_os_str().is_empty()).map_or(PathBuf::from("."), Into::into);
            fs::metadata(parent).map_err(|e| error("its directory", e))?;
            Ok(())
        }
        Err(e) => Err(error("looking at it", e)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(error("the path is taken", io::Error::from(io::ErrorKind::AlreadyExists)))
        }
        Ok(_) => match is_served(path) {
            Ok(()) => Err(PortError::SocketInUse { device: device.clone() }),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|e| error("removing a left-over socket", e))
            }
            Err(e) => Err(error("finding out whether it is in use", e)),
        },
    }
}
