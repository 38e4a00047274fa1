use super::*;
use serde_json::Value;

fn at(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1_000)
}

fn operation(seq: u64) -> Operation {
    Operation { what: "allreduce", group: 1, epoch: 2, seq, tensor: Some(seq as u32), step: 7, bytes: 100 }
}

#[test]
fn the_last_operations_are_kept_with_their_states() {
    let mut flight = FlightRecorder::new(3);
    let tickets: Vec<Ticket> = (0..5).map(|seq| flight.post(at(seq), operation(seq))).collect();
    flight.advance(at(10), tickets[0], OpState::Failed); // Forgotten: no effect.
    flight.advance(at(11), tickets[2], OpState::Free);
    flight.progress(at(12), tickets[4], 40, Some(3));
    let json: Value = serde_json::from_str(&flight.dump(9, at(20), "why").to_json()).unwrap();
    assert_eq!(
        (&json["rank"], &json["reason"], &json["operations_before"]),
        (&9.into(), &"why".into(), &2.into())
    );
    let seen: Vec<(u64, &str, u64, f64)> = json["operations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|op| {
            let state = op["state"].as_str().unwrap();
            (
                op["seq"].as_u64().unwrap(),
                state,
                op["done_bytes"].as_u64().unwrap(),
                op["changed_us_ago"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(seen, [(2, "free", 100, 9.0), (3, "posted", 0, 17.0), (4, "running", 40, 8.0)]);
    assert_eq!(json["operations"][2]["waiting_for"], 3);
}

#[test]
fn notes_are_bounded_and_counted() {
    let mut flight = FlightRecorder::new(2);
    for n in 0..5 {
        flight.note(at(n), Note { what: "resend", peer: (n == 4).then_some(1), value: n });
    }
    let dump = flight.dump(0, at(4), "test");
    assert_eq!(dump.notes_before, 3);
    let values: Vec<u64> = dump.notes.iter().map(|line| line.note.value).collect();
    assert_eq!(values, [3, 4]);
    assert!(dump.to_string().contains("resend (4), rank 1"), "{dump}");
}

#[test]
fn the_text_names_operation_tensor_and_culprit() {
    let mut flight = FlightRecorder::new(8);
    let ticket = flight.post(at(0), operation(5));
    flight.progress(at(1_000), ticket, 60, Some(2));
    flight.advance(at(1_500), ticket, OpState::Failed);
    let text = flight.dump(0, at(2_000), "rank 2 is gone").to_string();
    for part in
        ["rank 0: rank 2 is gone", "FAILED", "tensor 5", "60 of 100 bytes", "2.0ms ago", "waits for rank 2"]
    {
        assert!(text.contains(part), "'{part}' is missing in:\n{text}");
    }
}
