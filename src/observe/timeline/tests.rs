use serde_json::Value;

use super::*;
use crate::observe::merge;

/// A folder for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shouter-timeline-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn parse(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn timed(trace: &Value) -> Vec<&Value> {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").collect()
}

fn names<'a>(trace: &'a Value, kind: &str) -> Vec<&'a str> {
    let all = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == kind);
    all.map(|event| event["args"]["name"].as_str().unwrap()).collect()
}

fn lasted(begin: u64, end: u64) -> TraceEvent {
    TraceEvent {
        name: "all-reduce",
        start: at(begin),
        duration_ns: Some(end - begin),
        ..TraceEvent::default()
    }
}

#[test]
fn the_newest_events_stay_and_the_lost_are_counted() {
    let timeline = Timeline::new(0, "a", 4);
    (0..11).for_each(|n| timeline.record(Row::Engine, lasted(n, n)));
    let trace = serde_json::to_value(timeline.trace()).unwrap();
    let kept: Vec<f64> = timed(&trace).iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert_eq!(kept, [0.007, 0.008, 0.009, 0.01]);
    assert_eq!(trace["otherData"]["overwritten"], 7);
}

#[test]
fn the_trace_is_json_in_order_of_time_with_names() {
    let folder = Folder::new("trace");
    let timeline = Timeline::new(3, "b", 16);
    timeline.record(Row::Calls, TraceEvent { name: "barrier", step: 2, ..lasted(9_000, 9_500) });
    timeline.record(
        Row::Calls,
        TraceEvent {
            tensor: Some("layer1.\"weight\"\n".into()),
            step: 1,
            bytes: Some(4096),
            ..lasted(1_234, 3_235)
        },
    );
    timeline.record(
        Row::Engine,
        TraceEvent {
            name: "resend",
            category: Category::Network,
            start: at(5_000),
            peer: Some(9),
            count: Some(2),
            ..TraceEvent::default()
        },
    );
    let path = folder.file("t.json");
    timeline.write(&path).unwrap();
    let trace = parse(&path);
    assert_eq!(names(&trace, "process_name"), ["rank 3 (host b)"]);
    assert_eq!(names(&trace, "thread_name"), ["calls", "engine"]);
    let events = timed(&trace);
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["ts"], 1.234);
    assert_eq!(events[0]["dur"], 2.001);
    assert_eq!(events[0]["cat"], "operation");
    assert_eq!(events[0]["args"]["tensor"], "layer1.\"weight\"\n");
    assert_eq!(events[0]["args"]["bytes"], 4096);
    assert_eq!(events[1]["name"], "barrier");
    let all = trace["traceEvents"].as_array().unwrap();
    let resend = all.iter().find(|event| event["ph"] == "i").unwrap();
    assert_eq!(
        (&resend["name"], &resend["cat"], &resend["ts"]),
        (&"resend".into(), &"network".into(), &5.0.into())
    );
    assert_eq!((&resend["args"]["peer"], &resend["args"]["count"]), (&9.into(), &2.into()));
    assert_ne!(resend["tid"], events[0]["tid"]);
    assert!(all.iter().all(|event| event["pid"] == 3));
}

#[test]
fn operations_that_overlap_get_rows_of_their_own() {
    let timeline = Timeline::new(0, "a", 16);
    for (begin, end) in [(0, 100), (50, 150), (100, 200), (120, 130)] {
        timeline.record(Row::Calls, lasted(begin, end));
    }
    let trace = serde_json::to_value(timeline.trace()).unwrap();
    let tracks: Vec<u64> = timed(&trace).iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert_eq!(tracks, [0, 1, 0, 2]);
}

#[test]
fn events_of_one_kind_are_called_by_their_tensors() {
    let timeline = Timeline::new(0, "a", 16);
    let of = |tensor: &str| TraceEvent { tensor: Some(tensor.into()), ..lasted(1, 2) };
    timeline.record(Row::Calls, of("trunk"));
    for tensor in ["trunk", UNNAMED] {
        timeline.record(Row::Wire, of(tensor));
    }
    let trace = serde_json::to_value(timeline.trace()).unwrap();
    let called: Vec<&Value> = timed(&trace).iter().map(|event| &event["name"]).collect();
    assert_eq!(called, ["all-reduce", "trunk", "all-reduce"]);
    assert_eq!(names(&trace, "thread_name"), ["calls", "wire", "wire (overlap 1)"], "no track is empty");
}

#[test]
fn waits_in_slices_are_one_until_the_operation_has_ended() {
    // Three places: it goes on where the ring has begun again, too.
    let timeline = Timeline::new(0, "a", 3);
    let ms = |ms: u64| ms * 1_000_000;
    let waits = [
        (1, 10, 60, false),
        (1, 61, 111, false),
        (2, 112, 120, true),
        // Of the first one again, but not at once.
        (1, 121, 171, false),
        (1, 182, 190, false),
        (1, 190, 200, true),
        (1, 200, 201, true),
    ];
    for (operation, begin, end, is_over) in waits {
        timeline.blocked(at(operation), is_over, lasted(ms(begin), ms(end)));
    }
    let trace = serde_json::to_value(timeline.trace()).unwrap();
    let kept: Vec<(f64, f64)> = timed(&trace)
        .iter()
        .map(|event| (event["ts"].as_f64().unwrap() / 1e3, event["dur"].as_f64().unwrap() / 1e3))
        .collect();
    assert_eq!(kept, [(121.0, 50.0), (182.0, 18.0), (200.0, 1.0)]);
    assert_eq!(trace["otherData"]["overwritten"], 2);
}

#[test]
fn threads_record_into_one_timeline() {
    let timeline = Timeline::new(0, "a", 1_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..500).for_each(|n| timeline.record(Row::Calls, lasted(n, n + 1))));
        }
    });
    let trace = serde_json::to_value(timeline.trace()).unwrap();
    assert_eq!((timed(&trace).len(), &trace["otherData"]["overwritten"]), (1_000, &1_000.into()));
}

/// The file of a rank of the host with this clock, whose ranks had met at `joined`, with an event at each of `times`.
fn file(folder: &Folder, rank: u32, clock: &str, joined: u64, times: &[u64]) -> PathBuf {
    let timeline = Timeline::new(rank, clock, 2);
    timeline.joined(at(joined));
    times.iter().for_each(|time| timeline.record(Row::Calls, lasted(*time, *time)));
    let mut trace = serde_json::to_value(timeline.trace()).unwrap();
    assert!(trace["otherData"]["clock"].as_str().is_some_and(|clock| clock.len() == 36), "a boot's name");
    trace["otherData"]["clock"] = clock.into();
    let path = folder.file(&format!("{rank}.json"));
    std::fs::write(&path, trace.to_string()).unwrap();
    path
}

#[test]
fn merging_lines_up_clocks_orders_events_and_refuses_a_rank_twice() {
    let folder = Folder::new("merge");
    // Rank 1 learnt 3 us later that all had joined, by the clock that it shares with rank 0; rank 2's host booted
    // later.
    let files = [
        file(&folder, 2, "b", 1_000, &[11_001, 31_001, 51_001]),
        file(&folder, 0, "a", 1_001_000, &[1_010_000, 1_030_000, 1_050_000]),
        file(&folder, 1, "a", 1_004_000, &[1_030_002]),
    ];
    let out = folder.file("all.json");
    let merged = merge(&files, &out).unwrap();
    assert_eq!((merged.ranks, merged.events, merged.overwritten), (3, 5, 2));
    let trace = parse(&out);
    let order: Vec<(u64, f64)> = timed(&trace)
        .iter()
        .map(|event| (event["pid"].as_u64().unwrap(), event["ts"].as_f64().unwrap()))
        .collect();
    assert_eq!(order, [(0, 1_030.0), (1, 1_030.002), (2, 1_031.001), (0, 1_050.0), (2, 1_051.001)]);
    assert_eq!(names(&trace, "process_name"), ["rank 0 (host a)", "rank 1 (host a)", "rank 2 (host b)"]);

    let twice = [files[0].clone(), files[0].clone()];
    assert!(matches!(merge(&twice, &out), Err(TimelineError::SameRank { rank: 2, .. })));
}

#[test]
fn files_that_are_no_timelines_are_refused_by_name() {
    let folder = Folder::new("bad");
    let out = folder.file("out.json");
    let part = |path: PathBuf| [path];
    let missing = merge(&part(folder.file("missing")), &out).unwrap_err();
    assert!(matches!(missing, TimelineError::Io { .. }), "{missing}");
    for (n, text) in
        ["", "[]", "{}", "{\"otherData\":{\"rank\":1}}", "{\"otherData\":{\"rank\":1},\"traceEvents\":[1]}"]
            .into_iter()
            .enumerate()
    {
        let path = folder.file(&format!("{n}.json"));
        std::fs::write(&path, text).unwrap();
        let error = merge(&part(path.clone()), &out).unwrap_err();
        assert!(matches!(error, TimelineError::NotATimeline { .. }), "{text}: {error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
    let timeline = Timeline::new(0, "a", 1);
    assert!(timeline.write(&folder.file("no/such/folder/t.json")).is_err());
}

#[test]
fn a_file_that_cannot_be_written_whole_is_removed_and_a_device_stays() {
    let folder = Folder::new("full");
    let (full, path) = (Path::new("/dev/full"), folder.file("all.json"));
    std::fs::write(&path, "").unwrap();
    let opened = std::fs::OpenOptions::new().write(true).open(full).unwrap();
    let error = files::write(opened, &path, &serde_json::json!({})).unwrap_err();
    assert!(error.to_string().contains("all.json") && !path.exists(), "{error}");
    assert!(Timeline::new(0, "a", 1).write(full).is_err());
    assert!(full.exists());
}

#[test]
fn a_trace_replaces_the_one_before_it_at_once() {
    let folder = Folder::new("replaced");
    let (path, link) = (folder.file("t.json"), folder.file("link.json"));
    Timeline::new(0, "before", 1).write(&path).unwrap();
    std::os::unix::fs::symlink("t.json", &link).unwrap();
    // A reader of the one before goes on with that.
    let reader = std::fs::File::open(&path).unwrap();
    Timeline::new(0, "after", 1).write(&link).unwrap();
    let old: Value = serde_json::from_reader(reader).unwrap();
    assert_eq!(names(&old, "process_name"), ["rank 0 (host before)"]);
    assert_eq!(names(&parse(&path), "process_name"), ["rank 0 (host after)"]);
    assert!(link.is_symlink());
}
