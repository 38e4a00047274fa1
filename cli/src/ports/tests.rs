use super::*;

#[test]
fn a_port_can_be_bound_and_is_not_given_to_two_jobs() {
    let port = Port::reserve().unwrap();
    let again = Port::take(port.number()).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.number())).unwrap();
    let number = port.number();
    drop(port);
    let again = Port::take(number).unwrap_err();
    assert_eq!(again.kind(), io::ErrorKind::AddrInUse, "somebody listens");
    drop(listener);
    assert_eq!(Port::take(number).unwrap().number(), number);
}
