use super::*;
use crate::bench::gpu::STAGED;
use crate::bench::gpu::table::RowVerdict;

fn line(bytes: u64, p50_us: f64) -> ReportLine {
    ReportLine { bytes: Some(bytes), p50_us: Some(p50_us), ..ReportLine::default() }
}

#[test]
fn the_slower_of_copies_and_host_path_is_the_ceiling() {
    let rows = || STAGED.map(|(row, aim)| Row::new(row, aim));
    let (gpu, host) = ([line(4096, 45.0), line(1 << 20, 1000.0)], [line(4096, 6.0), line(1 << 20, 900.0)]);
    let [large, small] = judge(rows(), &gpu, &host, 1e10).unwrap();
    assert_eq!((large.fraction, large.verdict), (Some(0.9), Some(RowVerdict::Met)));
    assert_eq!((small.ceiling, small.verdict), (Some(46.0), Some(RowVerdict::Met)));
    // 0.5 GB/s of copies are less than the host path's 1.2.
    let [large, _] = judge(rows(), &gpu, &host, 5e8).unwrap();
    assert_eq!(large.ceiling, Some(0.5));
    let slow = [line(4096, 47.0), line(1 << 20, 1200.0)];
    let verdicts = judge(rows(), &slow, &host, 1e10).unwrap().map(|row| row.verdict);
    assert_eq!(verdicts, [Some(RowVerdict::Missed); 2]);
    assert!(judge(rows(), &[ReportLine::default(), ReportLine::default()], &host, 1.0).is_none());
}
