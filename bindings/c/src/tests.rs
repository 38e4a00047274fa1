mod groups;
mod staged;
mod started;
mod windows;

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Mutex;

use shouter::{DType, Error, Operation, Reason, ReduceOp};

use crate::blocks::*;
use crate::collective::*;
use crate::error::*;
use crate::groups::*;
use crate::handle::*;
use crate::log::*;
use crate::p2p::*;
use crate::sigpipe::SigpipeBlocked;
use crate::types::{self, *};
use crate::uneven::*;
use crate::work::*;

fn last() -> String {
    // SAFETY: shouter_last_error returns a string that lives until the next call on this thread.
    unsafe { CStr::from_ptr(shouter_last_error()) }.to_str().unwrap().to_owned()
}

/// A tensor to be reduced.
fn tensor(name: *const std::ffi::c_char, count: usize, dtype: Dtype, op: Op) -> Tensor {
    let (input_counts, output_counts) = (ptr::null(), ptr::null());
    Tensor { name, kind: SHOUTER_OPERATION_ALLREDUCE, root: 0, count, dtype, op, input_counts, output_counts }
}

/// The descriptor of a tensor's next operation.
fn operation(id: u32) -> crate::work::Operation {
    crate::work::Operation {
        size: size_of::<crate::work::Operation>(),
        kind: SHOUTER_OPERATION_OF_TENSOR,
        tensor: id,
        dtype: 0,
        op: 0,
        root: 0,
        input: ptr::null(),
        output: ptr::null_mut(),
        count: 0,
        memory: SHOUTER_MEMORY_HOST,
        stream: ptr::null_mut(),
        factor: ptr::null(),
        input_layout: ptr::null(),
        output_layout: ptr::null(),
        input_counts: ptr::null(),
        output_counts: ptr::null(),
        to: 0,
        from: 0,
        tag: 0,
        room: 0,
    }
}

/// Starts the operation of a tensor in place.
unsafe fn push(
    shouter: *const Shouter,
    id: u32,
    data: *mut std::ffi::c_void,
    work: *mut *mut Work,
) -> Status {
    let operation = crate::work::Operation { input: data, output: data, ..operation(id) };
    // SAFETY: the caller's promise.
    unsafe { shouter_start(shouter, &operation, work) }
}

/// Starts the operation of a tensor on a GPU.
unsafe fn start_cuda(
    shouter: *const Shouter,
    id: u32,
    data: *mut std::ffi::c_void,
    work: *mut *mut Work,
) -> Status {
    let operation = crate::work::Operation { output: data, memory: SHOUTER_MEMORY_CUDA, ..operation(id) };
    // SAFETY: the caller's promise.
    unsafe { shouter_start(shouter, &operation, work) }
}

/// The committed header is cbindgen's output for this source. WRITE_SHOUTER_HEADER=1 writes it.
#[test]
fn header_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_root_or_default(root);
    config.after_includes = Some(version());
    let bindings = cbindgen::Builder::new().with_crate(root).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = in_c90(std::str::from_utf8(&made).unwrap());
    let path = root.join("include/shouter.h");
    if std::env::var_os("WRITE_SHOUTER_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "{} is stale: run WRITE_SHOUTER_HEADER=1 cargo test -p shouter-c",
        path.display()
    );
}

/// The header with C90 comments: a block of `//` lines becomes one comment.
fn in_c90(header: &str) -> String {
    let comment = |line: &str| {
        let slashes = line.trim_start();
        // A line without text parts two paragraphs.
        let text = slashes.strip_prefix("//")?;
        Some((line.len() - slashes.len(), text.strip_prefix(' ').unwrap_or(text).to_owned()))
    };
    let mut made = String::new();
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((indent, text)) = comment(line) else {
            match line.split_once("//") {
                Some((code, name)) => made += &format!("{}  /* {} */\n", code.trim_end(), name.trim()),
                None => made += &format!("{line}\n"),
            }
            continue;
        };
        let margin = " ".repeat(indent);
        made += &format!("{margin}/* {text}");
        while let Some((_, text)) = lines.peek().and_then(|line| comment(line)) {
            made += format!("\n{margin} * {text}").trim_end();
            lines.next();
        }
        made += " */\n";
    }
    made
}

/// The package's version, for the preprocessor.
fn version() -> String {
    let text = env!("CARGO_PKG_VERSION");
    let [major, minor, patch] =
        [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    format!(
        "
/* The version that this header belongs to; shouter_version() says that of the library. */
#define SHOUTER_VERSION \"{text}\"
#define SHOUTER_VERSION_MAJOR {major}
#define SHOUTER_VERSION_MINOR {minor}
#define SHOUTER_VERSION_PATCH {patch}
/* One number to compare: SHOUTER_VERSION_NUMBER >= 1002003 from version 1.2.3 on. */
#define SHOUTER_VERSION_NUMBER (SHOUTER_VERSION_MAJOR * 1000000 + SHOUTER_VERSION_MINOR * 1000 + SHOUTER_VERSION_PATCH)"
    )
}

/// The header stands alone, in the oldest C and C++ that compilers know and in the newest, and gives the version.
#[test]
fn the_header_is_c90_and_cpp() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let file = std::env::temp_dir().join(format!("shouter-c-header-{}.c", std::process::id()));
    let number = env!("CARGO_PKG_VERSION_MAJOR").parse::<u32>().unwrap() * 1_000_000
        + env!("CARGO_PKG_VERSION_MINOR").parse::<u32>().unwrap() * 1_000
        + env!("CARGO_PKG_VERSION_PATCH").parse::<u32>().unwrap();
    let program = format!(
        "#include <shouter.h>
#if SHOUTER_VERSION_NUMBER != {number}
#error another version
#endif
char version[sizeof SHOUTER_VERSION == sizeof \"{}\" ? 1 : -1];
int main(void) {{ return SHOUTER_OK; }}
",
        env!("CARGO_PKG_VERSION")
    );
    std::fs::write(&file, program).unwrap();
    for (compiler, language, standard) in [
        ("cc", "c", "c90"),
        ("cc", "c", "c99"),
        ("cc", "c", "c11"),
        ("c++", "c++", "c++98"),
        ("c++", "c++", "c++11"),
        ("c++", "c++", "c++17"),
    ] {
        let built = Command::new(compiler)
            .args([
                "-x",
                language,
                &format!("-std={standard}"),
                "-pedantic-errors",
                "-Wall",
                "-Wextra",
                "-Werror",
            ])
            .args(["-fsyntax-only", "-I"])
            .arg(&include)
            .arg(&file)
            .output()
            .expect("a C and a C++ compiler: install gcc and g++, or clang");
        assert!(built.status.success(), "{standard}: {}", String::from_utf8_lossy(&built.stderr));
    }
    std::fs::remove_file(file).unwrap();
}

/// The header has the numbers of the protocol.
#[test]
fn numbers_are_those_of_the_protocol() {
    let dtypes = [
        SHOUTER_F16,
        SHOUTER_BF16,
        SHOUTER_F32,
        SHOUTER_F64,
        SHOUTER_I8,
        SHOUTER_I16,
        SHOUTER_I32,
        SHOUTER_I64,
        SHOUTER_U8,
        SHOUTER_U16,
        SHOUTER_U32,
        SHOUTER_U64,
        SHOUTER_F8E4M3,
        SHOUTER_F8E5M2,
        SHOUTER_COMPLEX64,
        SHOUTER_COMPLEX128,
        SHOUTER_BOOL,
    ];
    let named: Vec<_> = dtypes.iter().map(|&n| types::dtype(n).unwrap()).collect();
    assert_eq!(named, DType::ALL);
    let ops = [
        SHOUTER_SUM,
        SHOUTER_MIN,
        SHOUTER_MAX,
        SHOUTER_PROD,
        SHOUTER_AVG,
        SHOUTER_BAND,
        SHOUTER_BOR,
        SHOUTER_BXOR,
        SHOUTER_LAND,
        SHOUTER_LOR,
        SHOUTER_LXOR,
    ];
    let named: Vec<_> = ops.iter().map(|&n| types::op(n).unwrap()).collect();
    assert_eq!(named, ReduceOp::ALL);
    for unknown in [-1, 17, 256, i32::MAX, i32::MIN] {
        assert_eq!(types::dtype(unknown).unwrap_err().code(), SHOUTER_ERROR_ARGUMENT);
        assert_eq!(types::op(unknown).unwrap_err().code(), SHOUTER_ERROR_ARGUMENT);
    }
}

/// The statuses of the header are the errors' codes (shouter's `codes_are_stable` checks those), and each has a name.
#[test]
fn statuses_are_the_errors_codes() {
    let statuses = [
        SHOUTER_ERROR_CONFIG,
        SHOUTER_ERROR_JOIN,
        SHOUTER_ERROR_DEVICE,
        SHOUTER_ERROR_ARGUMENT,
        SHOUTER_ERROR_MISMATCH,
        SHOUTER_ERROR_PEER_FAILED,
        SHOUTER_ERROR_DEADLINE,
        SHOUTER_ERROR_CLOSED,
        SHOUTER_ERROR_INTERNAL,
        SHOUTER_ERROR_TIMEOUT,
        SHOUTER_ERROR_ACCELERATOR,
        SHOUTER_ERROR_WOULD_BLOCK,
    ];
    assert!(statuses.into_iter().eq(1..=12));
    let errors = [
        (Error::Config(String::new()), SHOUTER_ERROR_CONFIG),
        (Error::Device(String::new()), SHOUTER_ERROR_DEVICE),
        (Error::Argument(String::new()), SHOUTER_ERROR_ARGUMENT),
        (Error::Internal(String::new()), SHOUTER_ERROR_INTERNAL),
        (Error::accelerator(""), SHOUTER_ERROR_ACCELERATOR),
    ];
    for (error, status) in errors {
        assert_eq!(error.code(), status, "{error:?}");
    }
    let mut names = std::collections::BTreeSet::from([c"ok", c"unknown"]);
    for status in statuses {
        // SAFETY: shouter_error_name returns a static string.
        assert!(names.insert(unsafe { CStr::from_ptr(shouter_error_name(status)) }), "{status}");
    }
    for unknown in [-1, 13, i32::MAX] {
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(shouter_error_name(unknown)) }, c"unknown");
    }
}

/// The numbers of the header are those of the library's enums.
#[test]
fn reasons_and_operations_are_the_librarys() {
    let reasons = [
        (Reason::Lost, SHOUTER_REASON_LOST),
        (Reason::Aborted, SHOUTER_REASON_ABORTED),
        (Reason::Late, SHOUTER_REASON_LATE),
        (Reason::Diverged, SHOUTER_REASON_DIVERGED),
        (Reason::Protocol, SHOUTER_REASON_PROTOCOL),
        (Reason::Accelerator, SHOUTER_REASON_ACCELERATOR),
        (Reason::Disconnected, SHOUTER_REASON_DISCONNECTED),
        (Reason::Stopped, SHOUTER_REASON_STOPPED),
        (Reason::Unreachable, SHOUTER_REASON_UNREACHABLE),
    ];
    assert!(reasons.iter().all(|(reason, number)| *reason as i32 == *number));
    let operations = [
        (Operation::AllReduce, SHOUTER_OPERATION_ALLREDUCE),
        (Operation::Broadcast, SHOUTER_OPERATION_BROADCAST),
        (Operation::Barrier, SHOUTER_OPERATION_BARRIER),
        (Operation::Register, SHOUTER_OPERATION_REGISTER),
        (Operation::Finalize, SHOUTER_OPERATION_FINALIZE),
        (Operation::Reduce, SHOUTER_OPERATION_REDUCE),
        (Operation::AllGather, SHOUTER_OPERATION_ALLGATHER),
        (Operation::ReduceScatter, SHOUTER_OPERATION_REDUCE_SCATTER),
        (Operation::Gather, SHOUTER_OPERATION_GATHER),
        (Operation::Scatter, SHOUTER_OPERATION_SCATTER),
        (Operation::AllToAll, SHOUTER_OPERATION_ALLTOALL),
        (Operation::AllGatherV, SHOUTER_OPERATION_ALLGATHERV),
        (Operation::GatherV, SHOUTER_OPERATION_GATHERV),
        (Operation::ScatterV, SHOUTER_OPERATION_SCATTERV),
        (Operation::ReduceScatterV, SHOUTER_OPERATION_REDUCE_SCATTERV),
        (Operation::AllToAllV, SHOUTER_OPERATION_ALLTOALLV),
        (Operation::Scan, SHOUTER_OPERATION_SCAN),
        (Operation::ExScan, SHOUTER_OPERATION_EXSCAN),
        (Operation::Send, SHOUTER_OPERATION_SEND),
        (Operation::Receive, SHOUTER_OPERATION_RECV),
        (Operation::Put, SHOUTER_OPERATION_PUT),
        (Operation::Get, SHOUTER_OPERATION_GET),
        (Operation::Accumulate, SHOUTER_OPERATION_ACCUMULATE),
        (Operation::FetchAndOp, SHOUTER_OPERATION_FETCH_AND_OP),
        (Operation::CompareAndSwap, SHOUTER_OPERATION_COMPARE_AND_SWAP),
        (Operation::Window, SHOUTER_OPERATION_WINDOW),
        (Operation::Group, SHOUTER_OPERATION_GROUP),
    ];
    assert!(operations.iter().all(|(operation, number)| *operation as i32 == *number));
}

/// The output of shouter_last_error_info for a struct of this size, in memory filled with 0xAA before.
fn info(size: usize) -> (i32, ErrorInfo) {
    // SAFETY: plain numbers.
    let mut info: ErrorInfo = unsafe { std::mem::transmute([0xAAu8; size_of::<ErrorInfo>()]) };
    info.size = size;
    // SAFETY: it has `size` bytes or more.
    let status = unsafe { shouter_last_error_info(&raw mut info) };
    (status, info)
}

fn in_rust(text: &[std::ffi::c_char]) -> String {
    text.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect()
}

#[test]
fn the_last_errors_fields_are_copied_as_far_as_the_caller_knows_them() {
    std::thread::spawn(|| {
        let whole = size_of::<ErrorInfo>();
        let (status, none) = info(whole);
        assert_eq!(
            (status, none.status, none.rank, none.tensor, none.in_use_by),
            (SHOUTER_OK, SHOUTER_OK, -1, -1, -1)
        );
        assert_eq!(
            (none.reason, none.operation, none.missing_count, in_rust(&none.text)),
            (0, 0, 0, String::new())
        );

        guard(|| Err(Error::Argument("x".repeat(5000))));
        let (status, all) = info(whole + 100);
        assert_eq!((status, all.size, all.status), (SHOUTER_OK, whole, SHOUTER_ERROR_ARGUMENT));
        assert_eq!(in_rust(&all.text), last()[..SHOUTER_TEXT_BYTES - 1]);

        let (status, old) = info(std::mem::offset_of!(ErrorInfo, reason));
        assert_eq!((status, old.size), (SHOUTER_OK, std::mem::offset_of!(ErrorInfo, reason)));
        assert_eq!((old.status, old.rank), (SHOUTER_ERROR_ARGUMENT, -1));
        assert_eq!((old.reason as u32, old.text[0] as u8), (0xAAAA_AAAA, 0xAA), "not the caller's memory");

        for size in [0, 1, size_of::<usize>() + 3] {
            assert_eq!(info(size).0, SHOUTER_ERROR_ARGUMENT);
        }
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { shouter_last_error_info(ptr::null_mut()) }, SHOUTER_ERROR_ARGUMENT);
        assert!(last().ends_with('x'), "the last error stays");
    })
    .join()
    .unwrap();
}

#[test]
fn a_panic_becomes_an_internal_error() {
    let status = guard(|| panic!("on purpose, number {}", 7));
    assert_eq!(status, SHOUTER_ERROR_INTERNAL);
    assert!(last().contains("on purpose, number 7"), "{}", last());
    assert_eq!(guard_value(5, || panic!("on purpose")), 5);
}

/// A message is kept without its zero bytes, and each thread has its own last error.
#[test]
fn the_last_error_is_the_threads_own() {
    assert_eq!(guard(|| Err(Error::Argument("before\0after".into()))), SHOUTER_ERROR_ARGUMENT);
    assert!(last().ends_with("beforeafter"), "{}", last());
    std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
    assert_eq!(guard(|| Ok(())), SHOUTER_OK);
    assert!(last().ends_with("beforeafter"), "a success keeps the last error");
}

/// Every function refuses NULL for every pointer with an error; none crashes.
#[test]
fn null_is_refused_everywhere() {
    let none = ptr::null_mut::<Shouter>();
    let (mut work, mut memory) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: NULL is allowed everywhere; the other pointers are valid.
    unsafe {
        let refused = [
            shouter_init(ptr::null(), ptr::null_mut()),
            shouter_init_list(ptr::null(), ptr::null(), 1, 1, ptr::null_mut()),
            shouter_allreduce(none, ptr::null_mut(), 1, SHOUTER_F32, SHOUTER_SUM),
            shouter_register(none, ptr::null(), 1, ptr::null_mut()),
            shouter_allreduce_cuda(none, ptr::null_mut(), 1, SHOUTER_F32, SHOUTER_SUM, ptr::null_mut()),
            shouter_start(none, &operation(0), &mut work),
            shouter_test(ptr::null(), &mut 0),
            shouter_wait_any(ptr::null(), 1, 0, &mut 0),
            shouter_on_done(ptr::null(), None, ptr::null_mut()),
            shouter_completion_fd(none, &mut 0),
            shouter_wait(ptr::null(), SHOUTER_DEFAULT_TIMEOUT),
            shouter_barrier(none),
            shouter_send(none, ptr::null(), 0, SHOUTER_F32, 0, 0),
            shouter_recv(none, ptr::null_mut(), 0, SHOUTER_F32, 0, 0, ptr::null_mut()),
            shouter_exchange(none, ptr::null_mut(), 1),
            shouter_probe(none, 0, 0, 0, ptr::null_mut(), ptr::null_mut()),
            shouter_set_step(none, 0),
            shouter_set_label(none, c"x".as_ptr()),
            shouter_stats(none, &mut Stats::default()),
            shouter_timeline(none, c"x".as_ptr()),
            shouter_dump(none, ptr::null_mut(), 0),
            shouter_abort(none, c"x".as_ptr()),
            shouter_alloc(none, 1, &mut memory),
            shouter_free(none, (&raw mut work).cast()),
            shouter_pin(none, (&raw mut work).cast(), 1),
            shouter_unpin(none, (&raw mut work).cast()),
        ];
        for (i, status) in refused.into_iter().enumerate() {
            assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "call {i}");
        }
        assert!(last().contains("NULL"), "{}", last());
        assert_eq!(shouter_finalize(none), SHOUTER_OK);
        let shape = [
            shouter_rank(none),
            shouter_size(none),
            shouter_local_rank(none),
            shouter_local_size(none),
            shouter_node(none),
            shouter_nodes(none),
        ];
        assert_eq!(shape, [0; 6]);
        assert_eq!(CStr::from_ptr(shouter_transport(none)), c"");
    }
}

/// Lists of more ranks than a job may have are refused before they are looked at; so is a file without a name.
#[test]
fn lists_that_cannot_be_are_refused() {
    let (mut addresses, port, mut shouter) = ([c"127.0.0.1".as_ptr()], 1u16, ptr::null_mut());
    for n in [0, 65_537, usize::MAX] {
        // SAFETY: the lists are not read.
        let status = unsafe { shouter_init_list(addresses.as_mut_ptr(), &port, n, 1, &mut shouter) };
        assert_eq!(status, SHOUTER_ERROR_ARGUMENT);
        assert!(last().contains(&format!("n is {n}; a group has 1 to 65536 ranks")), "{}", last());
    }
    // SAFETY: a string, and room for a pointer.
    assert_eq!(unsafe { shouter_init(c"".as_ptr(), &mut shouter) }, SHOUTER_ERROR_ARGUMENT);
    assert!(last().contains("config_file is empty"), "{}", last());
}

/// Handles that were freed, that are of the other kind, or that never were any: each call is an error, and the process goes on.
#[test]
fn a_handle_that_is_none_is_refused() {
    let (shouter, folder) = solo("handles");
    let mut data = [1f32; 4];
    let operation = crate::work::Operation {
        kind: SHOUTER_OPERATION_ALLREDUCE,
        dtype: SHOUTER_F32,
        op: SHOUTER_SUM,
        count: data.len(),
        input: data.as_ptr().cast(),
        output: data.as_mut_ptr().cast(),
        ..operation(0)
    };
    let refused = |status: Status, words: &str| {
        assert_eq!(status, SHOUTER_ERROR_ARGUMENT);
        assert!(last().contains(words), "{}", last());
    };
    let mut work = ptr::null_mut();
    // SAFETY: no handle is used while it is freed, and the data outlives the group; the rest is what is tested.
    unsafe {
        assert_eq!(shouter_start(shouter, &operation, &mut work), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_wait(work, SHOUTER_DEFAULT_TIMEOUT), SHOUTER_OK, "{}", last());
        for wrong in [(&raw mut data).cast::<Shouter>(), ptr::without_provenance_mut(0x10), work.cast()] {
            refused(shouter_barrier(wrong), "none that shouter_init");
            refused(shouter_finalize(wrong), "none that shouter_init");
            assert_eq!((shouter_rank(wrong), shouter_size(wrong)), (0, 0));
            assert_eq!(CStr::from_ptr(shouter_transport(wrong)), c"");
        }
        for wrong in [(&raw mut data).cast::<Work>(), shouter.cast()] {
            refused(shouter_wait(wrong, 0), "none that shouter_start");
            refused(shouter_work_free(wrong), "none that shouter_start");
        }
        assert_eq!(shouter_work_free(work), SHOUTER_OK);
        refused(shouter_work_free(work), "shouter_work_free has been called");
        refused(shouter_test(work, &mut 0), "shouter_work_free has been called");
        refused(shouter_wait_any(&work, 1, 0, &mut 0), "shouter_work_free has been called");
        let freed = work;
        assert_eq!(shouter_start(shouter, &operation, &mut work), SHOUTER_OK, "{}", last());
        refused(shouter_wait(freed, 0), "shouter_work_free has been called");
        assert_eq!(shouter_finalize(shouter), SHOUTER_OK, "{}", last());
        refused(shouter_finalize(shouter), "shouter_finalize has been called");
        refused(shouter_barrier(shouter), "shouter_finalize has been called");
        assert_eq!(shouter_size(shouter), 0);
        assert_eq!(shouter_wait(work, SHOUTER_DEFAULT_TIMEOUT), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_work_free(work), SHOUTER_OK);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A group of one, from a configuration file in a folder of its own.
fn solo(name: &str) -> (*mut Shouter, PathBuf) {
    let folder = std::env::temp_dir().join(format!("shouter-c-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("shouter.toml");
    let timeline = folder.join("timelines");
    let text = format!("rank = 0\nsize = 1\ntimeline = {timeline:?}\ndump_folder = {folder:?}\n");
    std::fs::write(&file, text).unwrap();
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let mut shouter = ptr::null_mut();
    // SAFETY: a string, and room for a pointer.
    assert_eq!(unsafe { shouter_init(path.as_ptr(), &mut shouter) }, SHOUTER_OK, "{}", last());
    assert!(!shouter.is_null());
    (shouter, folder)
}

/// Every type with every reduction, through every call: a supported reduction runs, any other is refused by name.
#[test]
fn a_reduction_that_a_type_lacks_is_refused_by_name() {
    let (shouter, folder) = solo("lacks");
    let mut room = [0u128; 2];
    let data: *mut std::ffi::c_void = room.as_mut_ptr().cast();
    let numbers = DType::ALL.iter().flat_map(|&dtype| ReduceOp::ALL.iter().map(move |&op| (dtype, op)));
    for (dtype, op) in numbers {
        let (number, reduction) = (i32::from(u8::from(dtype)), i32::from(u8::from(op)));
        let due = if op.is_of(dtype) { SHOUTER_OK } else { SHOUTER_ERROR_ARGUMENT };
        let name = format!("there is no {op} of {dtype}");
        let tensor = tensor(c"t".as_ptr(), 1, number, reduction);
        // SAFETY: a live group; the buffer has room for two elements of any type.
        let found = unsafe {
            [
                shouter_allreduce(shouter, data, 1, number, reduction),
                shouter_reduce(shouter, data, data, 1, number, reduction, 0),
                shouter_register(shouter, &tensor, 1, &mut 0),
                shouter_reduce_scatter(shouter, data, data, 1, number, reduction),
            ]
        };
        assert_eq!(found, [due; 4], "{op} of {dtype}: {}", last());
        assert!(due == SHOUTER_OK || last().contains(&name), "{}", last());
    }
    // SAFETY: live, and not used any more.
    assert_eq!(unsafe { shouter_finalize(shouter) }, SHOUTER_OK);
    std::fs::remove_dir_all(folder).unwrap();
}

/// All calls of a trainer, on a group of one.
#[test]
fn a_group_of_one_trains() {
    let (shouter, folder) = solo("trains");
    let mut data = [1.5f32, -2.0, 4.0];
    let table = [
        tensor(c"first".as_ptr(), 3, SHOUTER_F32, SHOUTER_SUM),
        tensor(c"second".as_ptr(), 3, SHOUTER_F32, SHOUTER_AVG),
    ];
    let mut ids = [u32::MAX; 2];
    let mut pending = [ptr::null_mut(); 2];
    let mut stats = Stats::default();
    // SAFETY: a live group; every buffer has the registered length and is left alone until the wait.
    unsafe {
        assert_eq!((shouter_rank(shouter), shouter_size(shouter), shouter_nodes(shouter)), (0, 1, 1));
        let transport = CStr::from_ptr(shouter_transport(shouter)).to_str().unwrap();
        assert!(transport.starts_with("local\n"), "{transport}");
        assert_eq!(shouter_set_step(shouter, 7), SHOUTER_OK);
        assert_eq!(
            shouter_allreduce(shouter, data.as_mut_ptr().cast(), 3, SHOUTER_F32, SHOUTER_SUM),
            SHOUTER_OK
        );
        assert_eq!(shouter_register(shouter, table.as_ptr(), 2, ids.as_mut_ptr()), SHOUTER_OK, "{}", last());
        assert_ne!(ids[0], ids[1]);
        let mut other = data;
        assert_eq!(push(shouter, ids[1], other.as_mut_ptr().cast(), &mut pending[1]), SHOUTER_OK);
        assert_eq!(push(shouter, ids[0], data.as_mut_ptr().cast(), &mut pending[0]), SHOUTER_OK);
        assert_eq!(shouter_wait(pending[0], SHOUTER_DEFAULT_TIMEOUT), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_wait(pending[1], i64::MAX), SHOUTER_OK, "{}", last());
        assert_eq!((data, other), ([1.5, -2.0, 4.0], [1.5, -2.0, 4.0]));
        assert_eq!(shouter_barrier(shouter), SHOUTER_OK);
        assert_eq!(shouter_stats(shouter, &mut stats), SHOUTER_OK);
        assert_eq!((stats.operations, stats.bytes_reduced), (3, 36));
        let mut memory = ptr::null_mut();
        assert_eq!(shouter_alloc(shouter, 4096, &mut memory), SHOUTER_OK, "{}", last());
        assert_eq!(memory.cast::<f64>().add(511).read(), 0.0);
        assert_eq!(shouter_allreduce(shouter, memory, 512, SHOUTER_F64, SHOUTER_SUM), SHOUTER_OK);
        assert_eq!(shouter_pin(shouter, memory, 4096), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_unpin(shouter, memory), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_pin(shouter, ptr::null_mut(), 1), SHOUTER_ERROR_ARGUMENT);
        assert_eq!(shouter_free(shouter, memory), SHOUTER_OK);
        assert_eq!(shouter_free(shouter, memory), SHOUTER_ERROR_ARGUMENT);
        assert_eq!(shouter_free(shouter, ptr::null_mut()), SHOUTER_OK);
        assert_eq!(shouter_alloc(shouter, usize::MAX, &mut memory), SHOUTER_ERROR_ARGUMENT);
        let mut part = ptr::null_mut();
        assert_eq!(shouter_group_create(shouter, [0].as_ptr(), 1, &mut part), SHOUTER_OK, "{}", last());
        let labelled = [(shouter, c"layers 3 to 5"), (part, c"experts")];
        for (group, label) in labelled {
            assert_eq!(shouter_set_label(group, label.as_ptr()), SHOUTER_OK, "{}", last());
        }
        for (group, _) in labelled {
            let mut sum = || shouter_allreduce(group, data.as_mut_ptr().cast(), 3, SHOUTER_F32, SHOUTER_SUM);
            assert_eq!(sum(), SHOUTER_OK, "{}", last());
            assert_eq!(shouter_set_label(group, ptr::null()), SHOUTER_OK, "{}", last());
            assert_eq!(sum(), SHOUTER_OK, "{}", last());
        }
        let bad = [0xffu8, 0];
        assert_eq!(shouter_set_label(part, bad.as_ptr().cast()), SHOUTER_ERROR_ARGUMENT);
        assert_eq!(shouter_finalize(part), SHOUTER_OK, "{}", last());
        let trace = folder.join("trace.json");
        let path = CString::new(trace.to_str().unwrap()).unwrap();
        assert_eq!(shouter_timeline(shouter, path.as_ptr()), SHOUTER_OK, "{}", last());
        let trace = std::fs::read_to_string(trace).unwrap();
        for (_, label) in labelled {
            let named = format!("\"name\":{:?}", label.to_str().unwrap());
            // The wait of a caller has the label as its name, and this was one operation.
            assert_eq!(trace.matches(&*named).count(), 2, "queue and wait of {label:?}: {trace}");
        }
        let mut path = [1; 4096];
        assert_eq!(shouter_dump(shouter, path.as_mut_ptr(), path.len()), SHOUTER_OK, "{}", last());
        let dump = CStr::from_ptr(path.as_ptr()).to_str().unwrap();
        assert!(dump.starts_with(folder.to_str().unwrap()), "{dump}");
        assert!(std::fs::read_to_string(dump).unwrap().contains("asked for by the program"));
        assert_eq!(shouter_dump(shouter, ptr::null_mut(), 0), SHOUTER_OK, "{}", last());
        let needed = dump.len() + "-3".len() + 1;
        assert_eq!(shouter_dump(shouter, path.as_mut_ptr(), needed - 1), SHOUTER_ERROR_ARGUMENT);
        assert!(last().contains(&format!("needs {needed} bytes")), "{}", last());
        assert_eq!(shouter_finalize(shouter), SHOUTER_OK);
    }
    let left: Vec<_> =
        std::fs::read_dir(folder.join("timelines")).unwrap().map(|file| file.unwrap().path()).collect();
    let [left] = left.as_slice() else { panic!("{left:?}") };
    assert!(std::fs::read_to_string(left).unwrap().contains("all-reduce"), "{left:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Wrong arguments on a live group are errors with a message, and the group goes on.
#[test]
fn wrong_arguments_are_refused() {
    let (shouter, folder) = solo("refuses");
    let mut data = [0f64; 2];
    let at = data.as_mut_ptr().cast::<std::ffi::c_void>();
    let bad_name = [0xffu8, 0];
    let one = |name, dtype, op| tensor(name, 1, dtype, op);
    let (mut id, mut ids) = (0, [0]);
    let mut pending = ptr::null_mut();
    // SAFETY: a live group; the pointers are valid or refused before use.
    unsafe {
        let good = one(c"x".as_ptr(), SHOUTER_F64, SHOUTER_SUM);
        assert_eq!(shouter_register(shouter, &good, 1, &mut id), SHOUTER_OK, "{}", last());
        let mut register = |tensor: Tensor| shouter_register(shouter, &tensor, 1, ids.as_mut_ptr());
        let refused = [
            ("NULL", shouter_allreduce(shouter, ptr::null_mut(), 1, SHOUTER_F64, SHOUTER_SUM)),
            ("aligned", shouter_allreduce(shouter, at.byte_add(1), 1, SHOUTER_F64, SHOUTER_SUM)),
            ("fit", shouter_allreduce(shouter, at, usize::MAX, SHOUTER_F64, SHOUTER_SUM)),
            ("element type", shouter_allreduce(shouter, at, 2, 99, SHOUTER_SUM)),
            ("reduction", shouter_allreduce(shouter, at, 2, SHOUTER_F64, 99)),
            ("NULL", register(one(ptr::null(), SHOUTER_F64, SHOUTER_SUM))),
            ("UTF-8", register(one(bad_name.as_ptr().cast(), SHOUTER_F64, SHOUTER_SUM))),
            ("element type", register(one(c"x".as_ptr(), -1, SHOUTER_SUM))),
            ("n is 0", shouter_register(shouter, ptr::null(), 0, &mut 0)),
            ("tensor", push(shouter, 12345, at, &mut pending)),
            ("aligned", push(shouter, id, at.byte_add(1), &mut pending)),
            ("NULL", push(shouter, id, ptr::null_mut(), &mut pending)),
            ("NULL", shouter_wait(ptr::null(), 0)),
            ("kind", register(Tensor { kind: 0, ..good })),
            ("NULL for this kind", register(Tensor { input_counts: &1, ..good })),
            ("one for each", register(Tensor { kind: SHOUTER_OPERATION_ALLGATHERV, count: 0, ..good })),
            ("/", shouter_timeline(shouter, c"/nonexistent/folder/x".as_ptr())),
        ];
        // Each message was overwritten by the next; only the statuses remain.
        for (what, status) in refused {
            assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "{what}");
        }
        assert_eq!(
            shouter_allreduce(shouter, at.byte_add(1), 1, SHOUTER_F64, SHOUTER_SUM),
            SHOUTER_ERROR_ARGUMENT
        );
        assert!(last().contains("aligned"), "{}", last());
        assert_eq!(push(shouter, id, at.byte_add(1), &mut pending), SHOUTER_ERROR_ARGUMENT);
        assert!(last().contains("aligned"), "{}", last());
        // A tensor without elements needs no address, in any call.
        let empty = Tensor { count: 0, ..one(c"nothing".as_ptr(), SHOUTER_F64, SHOUTER_SUM) };
        assert_eq!(shouter_register(shouter, &empty, 1, &mut id), SHOUTER_OK, "{}", last());
        assert_eq!(push(shouter, id, ptr::null_mut(), &mut pending), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_wait(pending, -1), SHOUTER_OK, "{}", last());
        assert_eq!(
            shouter_allreduce(shouter, ptr::null_mut(), 0, SHOUTER_F64, SHOUTER_SUM),
            SHOUTER_OK,
            "{}",
            last()
        );
        assert_eq!(shouter_allreduce(shouter, at, 2, SHOUTER_F64, SHOUTER_SUM), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_finalize(shouter), SHOUTER_OK);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A pointer that several threads use.
#[derive(Clone, Copy)]
struct Shared(*mut Shouter);

// SAFETY: a shouter_t may be used from several threads at once.
unsafe impl Send for Shared {}

impl Shared {
    fn get(self) -> *mut Shouter {
        self.0
    }
}

/// Ranks of one host, as threads of this process.
fn two(name: &str) -> ([Shared; 2], PathBuf) {
    let folder = std::env::temp_dir().join(format!("shouter-c-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // Below the range from which the kernel takes ports: other tests' sockets do not get it by chance.
    let port = 10_000 + port % 10_000;
    let join = |rank: u32| {
        let file = folder.join(format!("{rank}.toml"));
        let keys = format!(
            "rank = {rank}\nsize = 2\nlocal_rank = {rank}\nlocal_size = 2\nport = {port}\nkey = \"secret of the test\"\ndump_folder = {folder:?}\n"
        );
        std::fs::write(&file, keys).unwrap();
        let path = CString::new(file.to_str().unwrap()).unwrap();
        std::thread::spawn(move || {
            let mut shouter = ptr::null_mut();
            // SAFETY: a string, and room for a pointer.
            assert_eq!(unsafe { shouter_init(path.as_ptr(), &mut shouter) }, SHOUTER_OK, "{}", last());
            Shared(shouter)
        })
    };
    ([join(0), join(1)].map(|rank| rank.join().unwrap()), folder)
}

/// Every collective through its C function, in place and apart.
#[test]
fn every_collective_is_reached_from_c() {
    let (ranks, folder) = two("collectives");
    let play = |rank: Shared, me: u32| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        let input = [10 * me, 10 * me + 1];
        let from = input.as_ptr().cast();
        let (mut pair, mut one) = ([me; 2], me + 5);
        // SAFETY: a live group; all buffers are as long as each collective of two ranks says.
        unsafe {
            let into = pair.as_mut_ptr().cast();
            ok(shouter_allreduce_to(shouter, from, into, 2, SHOUTER_U32, SHOUTER_SUM));
            assert_eq!(pair, [10, 12]);
            ok(shouter_reduce(shouter, from, pair.as_mut_ptr().cast(), 2, SHOUTER_U32, SHOUTER_MAX, 1));
            assert_eq!(pair, if me == 1 { [10, 11] } else { [10, 12] });
            ok(shouter_broadcast(shouter, pair.as_mut_ptr().cast(), 2, SHOUTER_U32, 0));
            assert_eq!(pair, [10, 12]);
            // In place: the rank's own block of the output.
            pair[me as usize] = me + 7;
            let own = pair.as_ptr().add(me as usize).cast();
            ok(shouter_allgather(shouter, own, pair.as_mut_ptr().cast(), 1, SHOUTER_U32));
            assert_eq!(pair, [7, 8]);
            ok(shouter_gather(shouter, from, pair.as_mut_ptr().cast(), 1, SHOUTER_U32, 0));
            assert_eq!(pair, if me == 0 { [0, 10] } else { [7, 8] });
            let to_one = (&raw mut one).cast();
            ok(shouter_scatter(shouter, from, to_one, 1, SHOUTER_U32, 1));
            assert_eq!(one, 10 + me);
            ok(shouter_reduce_scatter(shouter, from, to_one, 1, SHOUTER_U32, SHOUTER_SUM));
            assert_eq!(one, 10 + 2 * me);
            ok(shouter_alltoall(shouter, from, pair.as_mut_ptr().cast(), 1, SHOUTER_U32));
            assert_eq!(pair, [me, 10 + me]);
            let wrong = shouter_broadcast(shouter, pair.as_mut_ptr().cast(), 2, SHOUTER_U32, 2);
            assert_eq!(wrong, SHOUTER_ERROR_ARGUMENT);
            assert!(last().contains("root 2"), "{}", last());
            let both = pair.as_mut_ptr();
            let overlap = shouter_alltoall(shouter, both.cast(), both.add(1).cast(), 1, SHOUTER_U32);
            assert_eq!(overlap, SHOUTER_ERROR_ARGUMENT, "{}", last());
            ok(shouter_barrier(shouter));
            shouter_finalize(shouter);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// The collectives with a count for each rank through their C functions, and the refused calls.
#[test]
fn blocks_that_differ_are_moved_from_c() {
    let (ranks, folder) = two("uneven");
    let play = |rank: Shared, me: usize| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        let refused = |status, with: &str| {
            assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "{}", last());
            assert!(last().contains(with), "{}", last());
        };
        let counts = [1usize, 3];
        let mine = vec![me as u32 + 5; counts[me]];
        let all: Vec<u32> = (0..4).map(|index| 10 * me as u32 + index).collect();
        let (mut four, mut own) = ([0u32; 4], vec![0u32; counts[me]]);
        let (from, into) = (mine.as_ptr().cast(), four.as_mut_ptr());
        // SAFETY: a live group; all buffers are as long as the counts say.
        unsafe {
            ok(shouter_allgatherv(shouter, from, into.cast(), counts.as_ptr(), SHOUTER_U32));
            assert_eq!(four, [5, 6, 6, 6]);
            four = [0; 4];
            let root_has = |here| if here { counts.as_ptr() } else { ptr::null() };
            let (output, given) = (four.as_mut_ptr().cast(), root_has(me == 1));
            ok(shouter_gatherv(shouter, from, counts[me], output, given, SHOUTER_U32, 1));
            assert_eq!(four, if me == 1 { [5, 6, 6, 6] } else { [0; 4] });
            let (input, output) = (all.as_ptr().cast(), own.as_mut_ptr().cast());
            ok(shouter_scatterv(shouter, input, root_has(me == 0), output, counts[me], SHOUTER_U32, 0));
            assert_eq!(own, [&[0][..], &[1, 2, 3]][me]);
            ok(shouter_reduce_scatterv(shouter, input, output, counts.as_ptr(), SHOUTER_U32, SHOUTER_SUM));
            assert_eq!(own, [&[10][..], &[12, 14, 16]][me]);
            // Rank 0 gives 1 and 3, rank 1 gives 3 and 1.
            let swapped = [counts, [3, 1]][me];
            let into = four.as_mut_ptr().cast();
            ok(shouter_alltoallv(shouter, input, swapped.as_ptr(), into, swapped.as_ptr(), SHOUTER_U32));
            assert_eq!(four, [[0, 10, 11, 12], [1, 2, 3, 13]][me]);
            ok(shouter_scan(shouter, input, into, 4, SHOUTER_U32, SHOUTER_SUM));
            assert_eq!(four, [[0, 1, 2, 3], [10, 12, 14, 16]][me]);
            four = [9; 4];
            ok(shouter_exscan(shouter, input, four.as_mut_ptr().cast(), 4, SHOUTER_U32, SHOUTER_MAX));
            assert_eq!(four, [[9; 4], [0, 1, 2, 3]][me]);

            let into = four.as_mut_ptr().cast();
            refused(shouter_scan(shouter, input, into, 4, SHOUTER_U32, SHOUTER_AVG), "avg");
            let (none, none_mut) = (ptr::null(), ptr::null_mut());
            refused(shouter_scan(shouter, none, into, 4, SHOUTER_U32, SHOUTER_SUM), "the input: ");
            refused(shouter_scan(shouter, input, none_mut, 4, SHOUTER_U32, SHOUTER_SUM), "the output: ");
            refused(shouter_allgatherv(shouter, from, into, ptr::null(), SHOUTER_U32), "counts is NULL");
            let odd = counts.as_ptr().byte_add(1);
            refused(shouter_allgatherv(shouter, from, into, odd, SHOUTER_U32), "aligned");
            // A negative number as a size_t, and sums that are too large.
            for bad in [[-1isize as usize, 1], [usize::MAX / 2, usize::MAX / 2 + 2], [1 << 61, 0]] {
                let bad = bad.as_ptr();
                refused(shouter_alltoallv(shouter, input, bad, into, bad, SHOUTER_U32), "fit in memory");
                refused(shouter_reduce_scatterv(shouter, input, into, bad, SHOUTER_U32, SHOUTER_SUM), "fit");
            }
            let (given, taken) = ([2usize, 2], [1usize, 3]);
            let overlapping =
                shouter_alltoallv(shouter, into, given.as_ptr(), into, taken.as_ptr(), SHOUTER_U32);
            refused(overlapping, "overlap");
            refused(shouter_gatherv(shouter, from, 1, into, counts.as_ptr(), SHOUTER_U32, 2), "root 2");
            ok(shouter_barrier(shouter));

            // Rank 1 expects other elements than rank 0 sends: both get an error, and the group goes on.
            let given = [[1usize, 2], [1, 1]][me];
            let taken = [[1usize, 1], [3, 1]][me];
            let (mut five, input) = ([0u32; 5], all.as_ptr().cast());
            let status = shouter_alltoallv(
                shouter,
                input,
                given.as_ptr(),
                five.as_mut_ptr().cast(),
                taken.as_ptr(),
                SHOUTER_U32,
            );
            assert_eq!(status, SHOUTER_ERROR_MISMATCH, "{}", last());
            let why = info(size_of::<ErrorInfo>()).1;
            assert_eq!((why.operation, why.rank), (SHOUTER_OPERATION_ALLTOALLV, 1 - me as i32));
            assert!(last().contains("rank 0 sends 2 elements to rank 1 and rank 1 expects 3"), "{}", last());
            ok(shouter_barrier(shouter));
            shouter_finalize(shouter);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// Tensors whose blocks differ: registered once, and started in each step; counts that differ are told to both ranks.
#[test]
fn blocks_that_differ_are_registered_from_c() {
    let (ranks, folder) = two("counted");
    let play = |rank: Shared, me: usize| {
        let shouter = rank.get();
        let ok = |status| assert_eq!(status, SHOUTER_OK, "{}", last());
        let counts = [1usize, 3];
        let (given, taken) = ([[2usize, 1], [3, 0]][me], [[2usize, 3], [1, 0]][me]);
        let one = |name: &'static CStr, kind, (input_counts, output_counts)| Tensor {
            kind,
            root: 1,
            input_counts,
            output_counts,
            ..tensor(name.as_ptr(), 0, SHOUTER_U32, SHOUTER_SUM)
        };
        let (input, output) = ((counts.as_ptr(), ptr::null()), (ptr::null(), counts.as_ptr()));
        let table = [
            one(c"all", SHOUTER_OPERATION_ALLGATHERV, output),
            one(c"root", SHOUTER_OPERATION_GATHERV, output),
            one(c"parts", SHOUTER_OPERATION_SCATTERV, input),
            one(c"sums", SHOUTER_OPERATION_REDUCE_SCATTERV, input),
            one(c"tokens", SHOUTER_OPERATION_ALLTOALLV, (given.as_ptr(), taken.as_ptr())),
        ];
        let mut ids = [0u32; 5];
        // SAFETY: a live group; the counts are as many as ranks, and all buffers as long as they say, and left alone until the waits.
        unsafe {
            // Rank 1 takes one element too many from rank 0, or has another list.
            let odd = [taken[0] + me, taken[1]];
            let pairs = one(c"tokens", SHOUTER_OPERATION_ALLTOALLV, (given.as_ptr(), odd.as_ptr()));
            let odd = [1, 3 + me];
            let list = one(c"all", SHOUTER_OPERATION_ALLGATHERV, (ptr::null(), odd.as_ptr()));
            let sends = "rank 0 sends 1 elements to rank 1 and rank 1 expects 2";
            let has = ["with 4 of rank 1, this rank has", "with 3 of rank 1, this rank has"][me];
            for (wrong, name, with) in [(pairs, "tokens", sends), (list, "all", has)] {
                assert_eq!(shouter_register(shouter, &wrong, 1, ids.as_mut_ptr()), SHOUTER_ERROR_MISMATCH);
                assert!(last().contains(with), "{}", last());
                let why = info(size_of::<ErrorInfo>()).1;
                assert_eq!((why.rank, &*in_rust(&why.tensor_name)), (1 - me as i32, name));
            }
            ok(shouter_register(shouter, table.as_ptr(), 5, ids.as_mut_ptr()));
            for step in 0..3u32 {
                let mine: Vec<u32> = (0..4).map(|index| 10 * me as u32 + index + step).collect();
                let at = |index: u32| index + step;
                let gathered = vec![at(0), at(10), at(11), at(12)];
                let sums: Vec<_> = [10, 12, 14, 16].map(|sum| sum + 2 * step).into();
                let expected = if me == 0 {
                    let tokens = vec![at(0), at(1), at(10), at(11), at(12)];
                    [gathered, vec![], vec![at(10)], sums[..1].into(), tokens]
                } else {
                    let parts = vec![at(11), at(12), at(13)];
                    [gathered.clone(), gathered, parts, sums[1..].into(), vec![at(2)]]
                };
                for (id, expected) in ids.iter().zip(expected) {
                    let mut found = vec![0u32; expected.len()];
                    let mut work = ptr::null_mut();
                    let (input, output) = (mine.as_ptr().cast(), found.as_mut_ptr().cast());
                    let next = crate::work::Operation { input, output, ..operation(*id) };
                    ok(shouter_start(shouter, &next, &mut work));
                    ok(shouter_wait(work, SHOUTER_DEFAULT_TIMEOUT));
                    assert_eq!(found, expected, "tensor {id} in step {step}");
                    shouter_work_free(work);
                }
            }
            shouter_finalize(shouter);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(move || play(ranks[0], 0));
        scope.spawn(move || play(ranks[1], 1));
    });
    std::fs::remove_dir_all(folder).unwrap();
}

/// An error gives a program the rank, the call and the tensor.
#[test]
fn an_error_names_rank_call_and_tensor_to_a_program() {
    const COUNT: usize = 60_000;
    let (ranks, folder) = two("fields");
    let both = move |call: fn(Shared, usize) -> ErrorInfo| {
        let second = std::thread::spawn(move || call(ranks[1], 1));
        [call(ranks[0], 0), second.join().unwrap()]
    };
    let tables = both(|rank, number| {
        let tensor = tensor(c"layer".as_ptr(), 8 + number, SHOUTER_F32, SHOUTER_SUM);
        // SAFETY: a live group, and one tensor.
        assert_eq!(unsafe { shouter_register(rank.get(), &tensor, 1, &mut 0) }, SHOUTER_ERROR_MISMATCH);
        info(size_of::<ErrorInfo>()).1
    });
    for (number, why) in tables.iter().enumerate() {
        assert_eq!((why.status, why.operation), (SHOUTER_ERROR_MISMATCH, SHOUTER_OPERATION_REGISTER));
        assert_eq!((why.rank, why.tensor, &*in_rust(&why.tensor_name)), (1 - number as i32, 0, "layer"));
        assert_eq!(why.reason, 0, "the group goes on");
    }
    let diverged = both(|rank, number| {
        let tensor = tensor(c"layer".as_ptr(), COUNT, SHOUTER_F32, SHOUTER_SUM);
        let (mut id, mut pending, mut data) = (0, ptr::null_mut(), vec![1f32; COUNT]);
        // SAFETY: a live group, one tensor, and data that lives until the wait.
        unsafe {
            assert_eq!(shouter_register(rank.get(), &tensor, 1, &mut id), SHOUTER_OK, "{}", last());
            shouter_set_step(rank.get(), 7);
            if number == 1 {
                assert_eq!(shouter_barrier(rank.get()), SHOUTER_ERROR_MISMATCH, "{}", last());
                return info(size_of::<ErrorInfo>()).1;
            }
            assert_eq!(push(rank.get(), id, data.as_mut_ptr().cast(), &mut pending), SHOUTER_OK);
            let status = shouter_wait(pending, 0);
            if status == SHOUTER_ERROR_TIMEOUT {
                let why = info(size_of::<ErrorInfo>()).1;
                assert_eq!((why.status, why.rank, why.step), (SHOUTER_ERROR_TIMEOUT, -1, 7));
                assert_eq!((why.operation, why.tensor), (SHOUTER_OPERATION_ALLREDUCE, i64::from(id)));
                assert_eq!(shouter_wait(pending, 60_000), SHOUTER_ERROR_MISMATCH, "{}", last());
            }
            info(size_of::<ErrorInfo>()).1
        }
    });
    let [pushed, barrier] = diverged;
    assert_eq!([&pushed, &barrier].map(|why| why.reason), [SHOUTER_REASON_DIVERGED; 2]);
    assert_eq!((pushed.rank, pushed.operation, pushed.step), (1, SHOUTER_OPERATION_ALLREDUCE, 7));
    assert_eq!((pushed.tensor, &*in_rust(&pushed.tensor_name)), (0, "layer"));
    assert_eq!((barrier.rank, barrier.operation, barrier.tensor), (0, SHOUTER_OPERATION_BARRIER, -1));
    assert_eq!(in_rust(&barrier.tensor_name), "");
    for rank in ranks {
        // SAFETY: the last call.
        assert_ne!(unsafe { shouter_finalize(rank.get()) }, SHOUTER_OK);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The arguments of the callback's calls.
static CALLED: Mutex<Vec<(usize, Status, String)>> = Mutex::new(Vec::new());

unsafe extern "C" fn called(context: *mut std::ffi::c_void, status: Status) {
    CALLED.lock().unwrap().push((context.addr(), status, last()));
}

/// Operations of every kind are started, waited for on two threads, one in reverse order, and reported by callback and
/// descriptor.
#[test]
fn every_kind_is_started_and_asked_from_any_thread() {
    const COUNT: usize = 3;
    let (ranks, folder) = two("works");
    let kinds = [
        SHOUTER_OPERATION_ALLREDUCE,
        SHOUTER_OPERATION_BROADCAST,
        SHOUTER_OPERATION_BARRIER,
        SHOUTER_OPERATION_REDUCE,
        SHOUTER_OPERATION_ALLGATHER,
        SHOUTER_OPERATION_REDUCE_SCATTER,
        SHOUTER_OPERATION_GATHER,
        SHOUTER_OPERATION_SCATTER,
        SHOUTER_OPERATION_ALLTOALL,
    ];
    let body = move |rank: Shared, number: usize| {
        let mut fd = -1;
        // SAFETY: a live group; room for a number.
        assert_eq!(unsafe { shouter_completion_fd(rank.get(), &mut fd) }, SHOUTER_OK, "{}", last());
        let mine = number as i32 + 1;
        let mut memory: Vec<_> = kinds.iter().map(|_| ([mine; 2 * COUNT], [0; 2 * COUNT])).collect();
        let mut works = vec![];
        for (kind, (input, output)) in kinds.into_iter().zip(&mut memory) {
            if kind == SHOUTER_OPERATION_BROADCAST {
                *output = *input;
            }
            let one = crate::work::Operation {
                kind,
                dtype: SHOUTER_I32,
                root: 1,
                input: input.as_ptr().cast(),
                output: output.as_mut_ptr().cast(),
                count: COUNT,
                ..operation(0)
            };
            let mut work = ptr::null_mut();
            // SAFETY: memory for two blocks, which lives until the waits.
            assert_eq!(unsafe { shouter_start(rank.get(), &one, &mut work) }, SHOUTER_OK, "{}", last());
            works.push(work);
        }
        let (mut ended, mut first) = (0, usize::MAX);
        // SAFETY: live handles.
        unsafe {
            assert_eq!(
                shouter_wait_any(works.as_ptr(), works.len(), 60_000, &mut first),
                SHOUTER_OK,
                "{}",
                last()
            );
            assert_eq!(shouter_test(works[first], &mut ended), SHOUTER_OK, "{}", last());
            assert_eq!(ended, 1);
            let handles: Vec<_> = works.iter().map(|work| work.addr()).collect();
            let other = std::thread::spawn(move || {
                for handle in handles.into_iter().rev() {
                    let work = ptr::with_exposed_provenance::<Work>(handle);
                    assert_eq!(shouter_wait(work, SHOUTER_DEFAULT_TIMEOUT), SHOUTER_OK, "{}", last());
                }
            });
            for work in &works {
                work.expose_provenance();
                assert_eq!(shouter_wait(*work, SHOUTER_DEFAULT_TIMEOUT), SHOUTER_OK, "{}", last());
                assert_eq!(shouter_wait(*work, 0), SHOUTER_OK, "again");
                assert_eq!(shouter_wait(*work, -2), SHOUTER_ERROR_ARGUMENT);
                let context = ptr::without_provenance_mut(number + 1);
                assert_eq!(shouter_on_done(*work, Some(called), context), SHOUTER_OK, "{}", last());
                assert_eq!(shouter_on_done(*work, None, context), SHOUTER_ERROR_ARGUMENT);
            }
            other.join().unwrap();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            assert_eq!(libc::poll(&mut poll, 1, 20_000), 1, "the descriptor is readable");
            let mut count = 0u64;
            assert_eq!(libc::read(fd, (&raw mut count).cast(), 8), 8);
            works.into_iter().for_each(|work| assert_eq!(shouter_work_free(work), SHOUTER_OK));
        }
        let outputs: Vec<_> = memory.iter().map(|(_, output)| *output).collect();
        let one_block = |value: i32| [value, value, value, 0, 0, 0];
        let root_only = |values| if number == 1 { values } else { [0; 2 * COUNT] };
        let both = [1, 1, 1, 2, 2, 2];
        let expected = [
            one_block(3),
            [2, 2, 2, mine, mine, mine],
            [0; 6],
            root_only(one_block(3)),
            both,
            one_block(3),
            root_only(both),
            one_block(2),
            both,
        ];
        assert_eq!(outputs, expected);
    };
    let [first, second] = ranks;
    let other = std::thread::spawn(move || body(second, 1));
    body(first, 0);
    other.join().unwrap();
    // SAFETY: the last call on each.
    let leave = move |rank: Shared| unsafe { shouter_finalize(rank.get()) };
    let leaving = std::thread::spawn(move || leave(second));
    assert_eq!((leave(first), leaving.join().unwrap()), (SHOUTER_OK, SHOUTER_OK));
    let called = CALLED.lock().unwrap();
    assert_eq!(called.len(), 2 * kinds.len(), "finalize waits for callbacks");
    assert!(called.iter().all(|(context, status, _)| [1, 2].contains(context) && *status == SHOUTER_OK));
    std::fs::remove_dir_all(folder).unwrap();
}

/// A wrong call for a GPU is refused before a GPU is looked for; then the error says why there is none, or that the
/// memory is not a GPU's. The group goes on.
#[test]
fn memory_that_is_no_gpus_is_refused() {
    let (shouter, folder) = solo("gpu");
    let mut data = [1f64, 2.0];
    let at = data.as_mut_ptr().cast::<std::ffi::c_void>();
    let tensor = tensor(c"x".as_ptr(), 2, SHOUTER_F64, SHOUTER_SUM);
    let (mut id, mut pending) = (0, ptr::null_mut());
    let stream = ptr::null_mut();
    // SAFETY: a live group; the pointers are valid or refused before use.
    unsafe {
        assert_eq!(shouter_register(shouter, &tensor, 1, &mut id), SHOUTER_OK, "{}", last());
        let refuse = |what: &str, status| {
            assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "{what}");
            assert!(last().contains(what), "{what}: {}", last());
        };
        let reduce = |at, count, dtype, op| shouter_allreduce_cuda(shouter, at, count, dtype, op, stream);
        refuse("NULL", reduce(ptr::null_mut(), 1, SHOUTER_F64, SHOUTER_SUM));
        refuse("aligned", reduce(at.byte_add(1), 1, SHOUTER_F64, SHOUTER_SUM));
        refuse("fit", reduce(at, usize::MAX, SHOUTER_F64, SHOUTER_SUM));
        refuse("element type", reduce(at, 2, 99, SHOUTER_SUM));
        refuse("reduction", reduce(at, 2, SHOUTER_F64, 99));
        refuse("NULL", start_cuda(shouter, id, ptr::null_mut(), &mut pending));
        refuse("NULL", start_cuda(shouter, id, at, ptr::null_mut()));
        for push in [false, true] {
            let status = if push {
                start_cuda(shouter, id, at, &mut pending)
            } else {
                reduce(at, 2, SHOUTER_F64, SHOUTER_SUM)
            };
            let (expected, says) = match driver() {
                _ if !cfg!(feature = "cuda") => (SHOUTER_ERROR_ACCELERATOR, "feature cuda"),
                Driver::Missing => (SHOUTER_ERROR_ACCELERATOR, "install the NVIDIA driver"),
                Driver::Idle => (SHOUTER_ERROR_ACCELERATOR, ";"),
                Driver::Ready => (SHOUTER_ERROR_ARGUMENT, "not CUDA memory"),
            };
            assert_eq!(status, expected, "{}", last());
            assert!(last().contains(says), "{}", last());
        }
        assert_eq!(data, [1.0, 2.0]);
        assert_eq!(push(shouter, id, at, &mut pending), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_wait(pending, SHOUTER_DEFAULT_TIMEOUT), SHOUTER_OK, "{}", last());
        assert_eq!(shouter_finalize(shouter), SHOUTER_OK);
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// The CUDA driver that the dynamic linker finds.
enum Driver {
    /// No library.
    Missing,
    /// A library that does not start, or finds no device.
    Idle,
    /// A device.
    Ready,
}

fn driver() -> Driver {
    // SAFETY: the driver's library may be loaded any number of times; the functions have these types.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            return Driver::Missing;
        }
        let (init, count) =
            (libc::dlsym(library, c"cuInit".as_ptr()), libc::dlsym(library, c"cuDeviceGetCount".as_ptr()));
        if init.is_null() || count.is_null() {
            return Driver::Idle;
        }
        let init: extern "C" fn(u32) -> i32 = std::mem::transmute(init);
        let count: extern "C" fn(*mut i32) -> i32 = std::mem::transmute(count);
        let mut devices = 0;
        if init(0) == 0 && count(&mut devices) == 0 && devices > 0 { Driver::Ready } else { Driver::Idle }
    }
}

/// The lines that a callback has received.
type Taken = Mutex<Vec<(i32, i32, String)>>;

extern "C" fn take(context: *mut std::ffi::c_void, level: i32, rank: i32, text: *const std::ffi::c_char) {
    // SAFETY: the context of the test below, and a string for the call.
    let (taken, text) = unsafe { (&*context.cast::<Taken>(), CStr::from_ptr(text)) };
    taken.lock().unwrap().push((level, rank, text.to_str().unwrap().to_owned()));
    // SAFETY: no pointers. It changes nothing from here.
    let status = unsafe { shouter_set_log(ptr::null(), None, ptr::null_mut()) };
    assert_eq!(status, SHOUTER_ERROR_ARGUMENT);
}

/// A program without a tracing subscriber, as those in C are; the test below starts it.
#[test]
fn a_program_that_logs() {
    let Some(what) = std::env::var_os("SHOUTER_TEST_LOGS") else { return };
    let taken = Taken::default();
    let join = |name| {
        let (shouter, folder) = solo(name);
        // SAFETY: a live group.
        assert_eq!(unsafe { shouter_finalize(shouter) }, SHOUTER_OK);
        std::fs::remove_dir_all(folder).unwrap();
    };
    if what == "callback" {
        let set = |filter: *const std::ffi::c_char, log, context: &Taken| {
            // SAFETY: a string or NULL; the context outlives its use, which ends with the call that sets another.
            unsafe { shouter_set_log(filter, log, ptr::from_ref(context).cast_mut().cast()) }
        };
        assert_eq!(set(c"loud".as_ptr(), Some(take), &taken), SHOUTER_ERROR_ARGUMENT);
        assert!(last().contains("'loud'"), "{}", last());
        assert_eq!(set(c"info".as_ptr(), Some(take), &taken), SHOUTER_OK, "{}", last());
        join("taken");
        assert_eq!(set(c"off".as_ptr(), Some(take), &taken), SHOUTER_OK);
        join("off");
        let lines = taken.lock().unwrap();
        let [(level, rank, text), (_, _, end)] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(end.starts_with("shouter::observe::timeline: the timeline was written"), "{end}");
        assert_eq!((*level, *rank), (SHOUTER_LOG_INFO, 0));
        assert!(
            text.starts_with("shouter::communicator::init: the group has come together size=1"),
            "{text}"
        );
        assert_eq!(set(ptr::null(), None, &taken), SHOUTER_OK);
    }
    join("stderr");
}

/// SHOUTER_LOG works without a subscriber: to standard error, a line an event with its rank, without colour; a callback takes
/// the lines instead.
#[test]
fn the_log_goes_to_standard_error_or_to_a_callback() {
    let stderr = |what: &str, filter: Option<&str>| {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "tests::a_program_that_logs", "--nocapture"]).env("SHOUTER_TEST_LOGS", what);
        match filter {
            Some(filter) => program.env("SHOUTER_LOG", filter),
            None => program.env_remove("SHOUTER_LOG"),
        };
        let output = program.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(stderr("stderr", None), [""; 0]);
    let says = " INFO rank 0 shouter::communicator::init: the group has come together size=1 hosts=1 transport=\"local\"";
    for what in ["stderr", "callback"] {
        let lines = stderr(what, Some("info"));
        let [line, end] = lines.as_slice() else { panic!("{lines:?}") };
        assert!(
            end.contains(" INFO rank 0 shouter::observe::timeline: the timeline was written path="),
            "{end:?}"
        );
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(
            time.len() == 27 && time.starts_with("20") && time.ends_with('Z') && rest == says,
            "{line:?}"
        );
    }
    let wrong = stderr("stderr", Some("loud"));
    assert!(wrong.len() == 1 && wrong[0].starts_with("SHOUTER_LOG: 'loud' is no log filter"), "{wrong:?}");
}

/// An invalid configuration is refused with its file named, and no group is returned.
#[test]
fn a_bad_configuration_is_refused() {
    let mut shouter = ptr::null_mut();
    let lists = |address: &CStr, out: *mut *mut Shouter| {
        // SAFETY: one string, one port, room for a pointer.
        unsafe { shouter_init_list(&address.as_ptr(), &4000, 1, 10, out) }
    };
    // SAFETY: a string, and room for a pointer.
    let status = unsafe { shouter_init(c"/nonexistent/shouter.toml".as_ptr(), &mut shouter) };
    assert_eq!(status, SHOUTER_ERROR_CONFIG);
    assert!(last().contains("/nonexistent/shouter.toml"), "{}", last());
    assert_eq!(lists(c"not an address", &mut shouter), SHOUTER_ERROR_ARGUMENT);
    assert!(last().contains("not an address"), "{}", last());
    assert!(shouter.is_null());
}

#[test]
fn lists_join_with_the_connections_that_are_given_or_with_as_many_as_usual() {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for (number, configured) in [(0, None), (1, Some(1)), (256, Some(256))] {
        let config = crate::handle::listed(&["127.0.0.1".parse().unwrap()], &[free()], number).unwrap();
        assert_eq!(config.channel_num, configured, "{number}");
    }
    for (number, expected) in [(0, SHOUTER_OK), (256, SHOUTER_OK), (257, SHOUTER_ERROR_CONFIG)] {
        let port = free();
        let mut shouter = ptr::null_mut();
        // SAFETY: one string, one port, room for a pointer.
        let status = unsafe { shouter_init_list(&c"127.0.0.1".as_ptr(), &port, 1, number, &mut shouter) };
        assert_eq!(status, expected, "{number}: {}", last());
        assert_eq!(shouter.is_null(), expected != SHOUTER_OK);
        // SAFETY: the group, or NULL; nobody else uses it.
        assert_eq!(unsafe { shouter_finalize(shouter) }, SHOUTER_OK);
    }
}

/// A write to a socket whose other end is closed, with C's handling of SIGPIPE: the process goes on, the mask is
/// restored, and the signal does not come later either.
#[test]
fn a_closed_peer_does_not_end_the_process() {
    let mut ends = [0; 2];
    // SAFETY: plain system calls on descriptors of this test; the handler is put back. The default action, should the guard
    // fail, ends this test's process, which the runner reports.
    unsafe {
        let handler = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, ends.as_mut_ptr()), 0);
        libc::close(ends[1]);
        let mask = |set: *mut libc::sigset_t| libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set);
        let mut after = std::mem::zeroed();
        {
            let _quiet = SigpipeBlocked::new();
            assert_eq!(libc::write(ends[0], b"x".as_ptr().cast(), 1), -1);
            assert_eq!(std::io::Error::last_os_error().kind(), std::io::ErrorKind::BrokenPipe);
        }
        mask(&mut after);
        assert_eq!(libc::sigismember(&after, libc::SIGPIPE), 0);
        libc::close(ends[0]);
        libc::signal(libc::SIGPIPE, handler);
    }
}

#[test]
fn the_version_is_the_packages() {
    // SAFETY: shouter_version returns a static string.
    assert_eq!(unsafe { CStr::from_ptr(shouter_version()) }.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

/// Messages of a group of one to itself, and refused calls.
#[test]
fn a_group_of_one_sends_to_itself() {
    let (shouter, folder) = solo("sends");
    let (data, mut into) = ([1.5f32, -2.0, 4.0], [0f32; 4]);
    let (from, to) = (data.as_ptr().cast(), into.as_mut_ptr().cast());
    let (mut found, mut message) = (7, Message::default());
    let sent = Message { rank: 0, tag: 9, count: 3, dtype: SHOUTER_F32 };
    let entry = |kind, data: *mut std::ffi::c_void, count| ExchangeEntry {
        kind,
        data,
        count,
        dtype: SHOUTER_F32,
        rank: 0,
        tag: 9,
        layout: ptr::null(),
        status: -1,
        message: Message::default(),
    };
    // SAFETY: a live group; every buffer has the length that is said, and is left alone.
    unsafe {
        let any = (SHOUTER_ANY_RANK, SHOUTER_ANY_TAG);
        assert_eq!(
            shouter_probe(shouter, any.0, any.1, 0, &mut found, &mut message),
            SHOUTER_OK,
            "{}",
            last()
        );
        assert_eq!(found, 0);
        assert_eq!(shouter_send(shouter, from, 3, SHOUTER_F32, 0, 9), SHOUTER_OK, "{}", last());
        assert_eq!(
            shouter_probe(shouter, 0, any.1, 1000, &mut found, &mut message),
            SHOUTER_OK,
            "{}",
            last()
        );
        assert_eq!((found, message), (1, sent));
        message = Message::default();
        let received = shouter_recv(shouter, to, 4, SHOUTER_F32, any.0, 9, &mut message);
        assert_eq!((received, message, into), (SHOUTER_OK, sent, [1.5, -2.0, 4.0, 0.0]), "{}", last());
        let mut short = [0f32; 2];
        let mut both = [
            entry(SHOUTER_RECV, short.as_mut_ptr().cast(), 2),
            entry(SHOUTER_SYNCHRONOUS_SEND, from.cast_mut(), 3),
            entry(SHOUTER_RECV, to, 4),
            entry(SHOUTER_SEND, from.cast_mut(), 3),
        ];
        assert_eq!(shouter_exchange(shouter, both.as_mut_ptr(), 4), SHOUTER_ERROR_MISMATCH);
        assert!(last().contains("receive of up to 2 x f32"), "{}", last());
        let statuses = both.map(|entry| entry.status);
        assert_eq!(statuses, [SHOUTER_ERROR_MISMATCH, SHOUTER_ERROR_MISMATCH, SHOUTER_OK, SHOUTER_OK]);
        assert_eq!((both[2].message, both[3].message), (sent, sent));
        assert_eq!(shouter_exchange(shouter, ptr::null_mut(), 0), SHOUTER_OK, "{}", last());
        let refused = [
            shouter_send(shouter, from, 3, SHOUTER_F32, 1, 0),
            shouter_send(shouter, from, 3, 99, 0, 0),
            shouter_send(shouter, ptr::null(), 3, SHOUTER_F32, 0, 0),
            shouter_send(shouter, from, usize::MAX, SHOUTER_F32, 0, 0),
            shouter_send(shouter, from.cast::<u8>().add(1).cast(), 1, SHOUTER_F32, 0, 0),
            shouter_recv(shouter, to, 4, SHOUTER_F32, 1, 0, ptr::null_mut()),
            shouter_recv(shouter, to, 4, SHOUTER_F32, -2, 0, ptr::null_mut()),
            shouter_recv(shouter, to, 4, SHOUTER_F32, 0, i64::MAX, ptr::null_mut()),
            shouter_exchange(shouter, [entry(7, to, 1)].as_mut_ptr(), 1),
            shouter_exchange(shouter, ptr::null_mut(), 1),
            shouter_probe(shouter, 0, 0, -1, &mut found, &mut message),
            shouter_probe(shouter, 1, 0, 0, &mut found, &mut message),
        ];
        for (i, status) in refused.into_iter().enumerate() {
            assert_eq!(status, SHOUTER_ERROR_ARGUMENT, "call {i}: {}", last());
        }
        assert_eq!(shouter_finalize(shouter), SHOUTER_OK, "{}", last());
    }
    std::fs::remove_dir_all(folder).unwrap();
}
