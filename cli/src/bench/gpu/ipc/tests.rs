use super::*;
use crate::bench::gpu::IPC;
use crate::bench::gpu::table::RowVerdict;

#[test]
fn each_tensor_is_read_once_and_written_once() {
    let [processes, threads] = IPC.map(|(row, aim)| Row::new(row, aim));
    let line = |p50_us| ReportLine { bytes: Some(1 << 30), p50_us: Some(p50_us), ..ReportLine::default() };
    // 4 GiB read and 4 GiB written at 4 GiB/s each way: a second.
    let copied = f64::from(1u32 << 31) * 2.0;
    let judged = judge(processes.clone(), &line(1.6e6), copied).unwrap();
    assert_eq!((judged.fraction, judged.verdict), (Some(0.625), Some(RowVerdict::Met)));
    assert_eq!(judged.ceiling, Some(round4(copied * 2.0 / 1e9)));
    assert!(judged.note.unwrap().ends_with("p50 1600000 us, by memory traffic 1000000 us"));
    assert_eq!(judge(processes, &line(1.7e6), copied).unwrap().verdict, Some(RowVerdict::Missed));
    assert_eq!(judge(threads.clone(), &line(1.24e6), copied).unwrap().verdict, Some(RowVerdict::Met));
    assert_eq!(judge(threads.clone(), &line(1.3e6), copied).unwrap().verdict, Some(RowVerdict::Missed));
    assert!(judge(threads, &ReportLine::default(), copied).is_none());
}
