use shouter_netstack::verbs::Errno;

use super::*;

fn failed(errno: i32) -> VerbsError {
    VerbsError::Call { device: "rxe1".into(), call: "ibv_create_qp", errno: Errno(errno) }
}

#[test]
fn a_device_that_was_removed_is_told_from_one_that_refuses() {
    assert_eq!(setup(&failed(libc::EIO)), Fault::DeviceGone);
    assert_eq!(setup(&failed(libc::ENODEV)), Fault::DeviceGone);
    assert_eq!(setup(&failed(libc::ENOMEM)), Fault::Setup(libc::ENOMEM));
    let unreachable = VerbsError::Unreachable { device: "rxe1".into(), errno: Errno(libc::EHOSTUNREACH) };
    assert_eq!(setup(&unreachable), Fault::Setup(libc::EHOSTUNREACH));
}

#[test]
fn a_failed_request_names_what_its_port_and_device_say() {
    assert_eq!(fault(Status::RetryExceeded, false, false), Fault::RetryExceeded);
    assert_eq!(fault(Status::RetryExceeded, true, false), Fault::PortDown);
    assert_eq!(fault(Status::Flushed, true, true), Fault::DeviceGone);
}
