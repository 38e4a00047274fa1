use std::collections::HashMap;
use std::thread;

use super::*;

/// A launcher with one rank; it refuses values of more than 80 characters.
fn launcher(socket: UnixStream) {
    let mut values = HashMap::new();
    let mut socket = BufReader::new(socket);
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).unwrap() == 0 {
            return;
        }
        let of = |name| field(&line, name).unwrap().to_owned();
        let answer = match &*of("cmd") {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".into(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=80".into(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1".into(),
            "put" if of("value").len() > 80 || of("key").len() > 64 => {
                "cmd=put_result rc=-1 msg=too_long".into()
            }
            "put" => {
                values.insert(of("key"), of("value"));
                "cmd=put_result rc=0 msg=success".into()
            }
            "get" => match values.get(&of("key")) {
                Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
                None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
            },
            "barrier_in" => "cmd=barrier_out".into(),
            "finalize" => "cmd=finalize_ack".into(),
            _ => "cmd=unknown".to_owned(),
        };
        socket.get_mut().write_all(format!("{answer}\n").as_bytes()).unwrap();
    }
}

#[test]
fn values_travel_in_parts() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let served = thread::spawn(|| launcher(theirs));
    let mut client = Client::open(ours).unwrap();
    let long: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
    for value in [&long[..], &[], &[7]] {
        client.put("shouter/0123456789abcdef/65535", value).unwrap();
        client.fence(ANSWER).unwrap();
        assert_eq!(client.get("shouter/0123456789abcdef/65535").unwrap(), value);
    }
    let why = client.get("shouter/start").unwrap_err().to_string();
    assert!(why.contains("key_not_found"), "{why}");
    client.finish().unwrap();
    served.join().unwrap();
}

#[test]
fn a_launcher_that_closes_or_talks_nonsense_is_an_error() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(Client::open(ours).is_err());
    for nonsense in ["cmd=init rc=0\n", "cmd=response_to_init rc=-1\n", "\u{fffd}\n"] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(nonsense.as_bytes()).unwrap();
        assert!(Client::open(ours).is_err(), "{nonsense}");
    }
}
