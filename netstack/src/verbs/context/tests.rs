use rdma_sys::ibv_event_type as kind;

use super::*;

#[test]
fn events_have_the_numbers_of_the_interface() {
    let event = |kind: kind| AsyncEvent::of(&sys::DeviceEvent { kind: kind as u32, port: 2, qp: 17 });
    assert_eq!(event(kind::IBV_EVENT_CQ_ERR), AsyncEvent::CqError);
    for failure in [kind::IBV_EVENT_QP_FATAL, kind::IBV_EVENT_QP_REQ_ERR, kind::IBV_EVENT_QP_ACCESS_ERR] {
        assert_eq!(event(failure), AsyncEvent::QpFatal(17));
    }
    assert_eq!(event(kind::IBV_EVENT_DEVICE_FATAL), AsyncEvent::DeviceFatal);
    assert_eq!(event(kind::IBV_EVENT_PORT_ACTIVE), AsyncEvent::PortActive(2));
    assert_eq!(event(kind::IBV_EVENT_PORT_ERR), AsyncEvent::PortError(2));
    assert_eq!(event(kind::IBV_EVENT_LID_CHANGE), AsyncEvent::LidChange(2));
    assert_eq!(event(kind::IBV_EVENT_PKEY_CHANGE), AsyncEvent::PkeyChange(2));
    assert_eq!(event(kind::IBV_EVENT_GID_CHANGE), AsyncEvent::GidChange(2));
    assert_eq!(event(kind::IBV_EVENT_SM_CHANGE), AsyncEvent::Other(13));
}

#[test]
fn a_device_that_is_not_there_is_an_error_that_says_so() {
    match Context::open("no_such_device") {
        Err(VerbsError::UnknownDevice { name, known }) => {
            assert_eq!(name, "no_such_device");
            assert!(!known.is_empty());
        }
        Err(VerbsError::NoDevice | VerbsError::NoProvider { .. } | VerbsError::NoUverbs { .. }) => {}
        other => panic!("{other:?}"),
    }
}
