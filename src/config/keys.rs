//! The keys of the configuration: one row each.

/// A key: its name, and its allowed values.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// The name in the file; `SHOUTER_` and its upper case in the environment.
    pub name: &'static str,
    /// The allowed values, to finish the sentence "it is ...".
    pub allowed: &'static str,
    /// The value when it is given nowhere, or what happens then.
    pub default: &'static str,
    /// The key's effect, or the thing it sets.
    pub about: &'static str,
}

const fn key(
    name: &'static str,
    allowed: &'static str,
    default: &'static str,
    about: &'static str,
) -> KeySpec {
    KeySpec { name, allowed, default, about }
}

/// A duration, as the messages describe it.
pub(super) const DURATION: &str = "a time such as \"10s\", \"500ms\", \"30min\" or \"2h\", or a number of seconds, \
     above zero and at most 366 days (8784h)";
/// A share, as the messages describe it.
pub(super) const PERCENT: &str = "a percentage from \"0%\" to below \"100%\", such as \"0.1%\"";

/// Every key, in the order of the documentation.
pub const KEYS: &[KeySpec] = &[
    key(
        "rank",
        "a rank, from 0 to size - 1",
        "the launcher's, such as torchrun's RANK",
        "this process's number in the job",
    ),
    key(
        "size",
        "a number of ranks, from 1 to 65536",
        "the launcher's, such as torchrun's WORLD_SIZE",
        "the number of ranks in the job",
    ),
    key(
        "local_rank",
        "a rank on this host, from 0 to local_size - 1",
        "the launcher's, such as torchrun's LOCAL_RANK, else rank modulo local_size, which is right where all hosts have as many ranks",
        "this process's number on its host",
    ),
    key(
        "local_size",
        "a number of ranks, from 1 to size",
        "the launcher's, such as torchrun's LOCAL_WORLD_SIZE",
        "the number of ranks on this host",
    ),
    key(
        "node",
        "a host's number, counted from 0",
        "derived: ranks fill hosts in blocks",
        "this host's number in the job",
    ),
    key(
        "addr",
        "an IP address or a host name, without a port and brackets, or several with commas between, which are tried in turn",
        "found through PMI, or torchrun's MASTER_ADDR, else 127.0.0.1 when all ranks are on one host",
        "where rank 0 listens during set-up",
    ),
    key(
        "port",
        "a TCP port, from 1 to 65535",
        "found through PMI, or torchrun's MASTER_PORT + 1",
        "the port on which rank 0 listens during set-up",
    ),
    key(
        "key",
        "the job's secret: any text, best `openssl rand -hex 32`",
        "made for the job where ranks meet through PMI; else none, and needed by a job of several ranks",
        "what proves that a process belongs to the job",
    ),
    key(
        "key_file",
        "the path of a file that holds the key",
        "none",
        "the same, from a file; one that other users may read (`chmod 600` ends that) is taken with a warning in the log",
    ),
    key(
        "job",
        "a name of 1 to 64 letters, digits and `-_.:`",
        "torchrun's TORCHELASTIC_RUN_ID (and the number of its restart), else default",
        "the job's name; ranks of another job are refused",
    ),
    key(
        "channel_num",
        "a number of connections, from 1 to 256",
        "64 over rud, 10 over the others",
        "connections within one channel: RUD paths, TCP connections, queue pairs; over the kernel's sockets each is an open file on both hosts",
    ),
    key(
        "data_port",
        "a number from 1 to 65000, the same on all hosts",
        "61790",
        "the UDP port (and, with transport = \"tcp\", the TCP port) at which leaders reach each other over DPDK ports",
    ),
    key(
        "transport",
        "one of auto, shm, rud, tcp, verbs, kernel",
        "auto",
        "what carries the bytes between ranks; auto takes verbs where both hosts have an RDMA port with a route between them, else \
         RUD over DPDK ports, else sockets of the kernel",
    ),
    key(
        "mode",
        "one of caller, dedicated",
        "caller",
        "who drives the network: the thread that waits, or one of its own",
    ),
    key(
        "idle",
        "one of auto, spin, yield",
        "auto",
        "how to wait: with a core to itself a rank spins, where threads share cores it yields; auto compares the ranks of \
         the host, in dedicated mode two threads each, with its cores",
    ),
    key(
        "cores",
        "a list of core numbers such as \"0,2-5\", each from 0 to 4095 and named once",
        "none: threads are not pinned",
        "the cores that this rank's threads may be pinned to",
    ),
    key(
        "shards",
        "a number of threads, from 1 to 16, the same on all ranks",
        "1",
        "threads that drive the network in dedicated mode, each on a core of `cores` and a queue of each port of its own; all-reduces \
         between hosts of so many times 64 KiB of host memory and more are spread over them",
    ),
    key("heartbeat_timeout", DURATION, "10s", "a process that is silent for this long is taken for dead"),
    key("deadline", DURATION, "30min", "how long one operation may take, late peers included"),
    key("rendezvous_deadline", DURATION, "60s", "how long to wait for all ranks at the start"),
    key(
        "ports",
        "a list of tables such as [{device = \"vhost:/run/a.sock\", address = \"10.77.0.1/24\", peers = [\"10.77.0.2\"], mtu = 9000}]",
        "none",
        "the Ethernet ports of this host's first rank",
    ),
    key("mtu", "a number of bytes, from 576 to 9000", "9000", "the MTU of ports that name none"),
    key(
        "dpdk_memory_mb",
        "a number of MiB, from 64 to 1048576",
        "512",
        "memory for the frame buffers of all ports of a rank, with hugepages or without, in MiB",
    ),
    key("hugepages", "one of auto, on, off", "auto", "whether DPDK uses hugepages; auto does without them"),
    key(
        "offload",
        "one of on, off",
        "off",
        "whether ports fill in checksums and split long TCP segments; RUD is faster without",
    ),
    key(
        "crc",
        "one of on, off",
        "on",
        "whether frames on byte streams and fragments over verbs carry a CRC32C of their own, as RUD's always do; the same on \
         all ranks",
    ),
    key(
        "rud_seal",
        "one of on, off",
        "off",
        "whether the datagrams of RUD are encrypted and authenticated, by AES-256-GCM: hosts then send data over RUD alone, which transport auto takes \
         and rud is; tcp, verbs and kernel are refused, and a key under 32 characters or one that goes through a launcher's store; the same on all ranks",
    ),
    key(
        "rdma_device",
        "the name of an RDMA device such as mlx5_0, with a port's number if need be (mlx5_0/1), or auto, or none",
        "auto",
        "which RDMA device this host uses",
    ),
    key(
        "rdma_memory_mb",
        "a number of MiB, from 1 to 1048576",
        "256",
        "memory to register with the RDMA device, in MiB; the same on all ranks: first the slots of all queue pairs, then \
         tensors that are sent from where they lie and received there, as far as it reaches",
    ),
    key(
        "gpu_direct",
        "one of on, off",
        "off",
        "whether an RDMA device reads and writes tensors on a GPU where they lie: where a rank is alone on its host, all its channels are \
         verbs, and the device can register the GPU's memory (not run on hardware yet)",
    ),
    key(
        "kernel_address",
        "an IPv4 address of this host",
        "the one by which rank 0 is reached",
        "where sockets of the kernel listen: for transport kernel, and beside verbs",
    ),
    key(
        "gpu_peers",
        "one of auto, off",
        "auto",
        "whether GPUs of a host reduce straight from each other's memory (CUDA IPC) where they can; off stages tensors in host memory",
    ),
    key(
        "gpu_kernels",
        "the path of a folder that `shouter bench gpu --kernels DIR --compile LIST` has filled",
        "none: NVRTC compiles them once, and ~/.cache/shouter keeps them",
        "compiled kernels for hosts that have GPUs and no NVRTC",
    ),
    key(
        "schedule",
        "a list of collectives with their algorithms, such as all_reduce:ring,reduce:direct",
        "none: the cost model chooses",
        "which algorithm a collective uses, whatever its size; the same on all ranks (operations of up to 4 KiB on one host need none)",
    ),
    key(
        "levels",
        "a list of up to 4 sizes of groups, innermost first, such as 8,4",
        "8",
        "how reductions group hosts: so many hosts that follow one another form a group, so many groups a group of the next level, and so on (the last \
         one may be smaller); members of a group reduce among themselves first, and the groups of the last level exchange all with all; 1: no \
         groups; in a group of some ranks ranks count for hosts; the same on all ranks, for sums are folded in this order",
    ),
    key(
        "fuse_below",
        "a number of bytes, from 0 to 1073741824",
        "0: none",
        "all-reduces of registered tensors below this size are fused: those of one type and reduction go as one message when all of them \
         were pushed; the same on all ranks",
    ),
    key(
        "fuse_bytes",
        "a number of bytes, from 1 to 1073741824",
        "65536",
        "the most that is fused into one message; the same on all ranks",
    ),
    key(
        "costs",
        "the path of a file that `shouter plan --measure` has written",
        "~/.cache/shouter/costs.toml (or below XDG_CACHE_HOME) where it exists, else see measure_costs",
        "what steps and messages cost, by which algorithms are chosen; rank 0's file counts for all",
    ),
    key(
        "measure_costs",
        "one of on, off",
        "on",
        "whether figures that costs does not have are measured while the ranks join, in about 50 ms at most, or taken from costs_cache; off, with \
         faults, and where nothing plausible and steady is found in that time: built-in figures for the transport; rank 0's counts for all",
    ),
    key(
        "costs_cache",
        "the path of a file",
        "~/.cache/shouter/measured.toml (or below XDG_CACHE_HOME); none where neither is known",
        "where rank 0 keeps what was measured for jobs with the same rank 0's host, ranks of each host, transport and settings of its link; \
         remove it to measure again",
    ),
    key("loss", PERCENT, "0%", "a fault: the share of received frames that is dropped"),
    key("corrupt", PERCENT, "0%", "a fault: the share of received frames in which a bit is flipped"),
    key("fault_seed", "a whole number from 0", "1", "the seed of the faults"),
    key(
        "timeline",
        "the path of a folder, which is made where it is missing; an empty text: none",
        "none",
        "record a timeline that Perfetto opens, and write it to a file in this folder when the process leaves the job (shouter_finalize, the drop of \
         its last group); shouter_timeline and Group::write_timeline write one at any time",
    ),
    key(
        "dump_folder",
        "the path of a folder",
        "the system's folder for temporary files (TMPDIR, else /tmp)",
        "where a rank writes its last 4,096 events, as a file that Perfetto opens: when the group ends in error, whose text names the file; by \
         shouter_dump or Group::dump; on dump_signal",
    ),
    key(
        "dump_signal",
        "one of USR1, USR2, HUP, QUIT, URG, WINCH",
        "none",
        "the signal on which a rank writes its last events; a handler that the program has set before is called, too, and the signal is \
         ignored after the group's end where there is none",
    ),
    key(
        "metrics",
        "an address with a port such as 127.0.0.1:9400, or the path of a file, with a slash in it, and with %r where a host has several ranks",
        "none",
        "show this rank's counters to Prometheus: at /metrics of that port plus the local rank, or in a file that is written every 10 s (for the node \
         exporter's textfile collector), with %r standing for the rank; where that cannot be, the rank warns and goes on without. Who reaches the port reads \
         the counters",
    ),
];

/// The values that a key allows.
pub(super) fn allowed(name: &str) -> &'static str {
    KEYS.iter().find(|key| key.name == name).map_or("", |key| key.allowed)
}

/// All names, for a message.
pub(super) fn names() -> String {
    KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")
}

/// The key that is spelt almost like `name`.
pub(super) fn nearest(name: &str) -> Option<String> {
    let limit = 2.max(name.len() / 4);
    let near = KEYS.iter().filter(|key| key.name.len().abs_diff(name.len()) <= limit);
    let distances = near.map(|key| (strsim::levenshtein(key.name, name), key.name));
    let (distance, best) = distances.min_by_key(|(distance, _)| *distance)?;
    (distance <= limit).then(|| best.to_owned())
}
