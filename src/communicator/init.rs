//! Makes a rank a member: takes the result of [`join`](mod@super::join), an engine over it, and the group around that.

use std::sync::Arc;

use shouter_reducer::executor::{Executor, ExecutorConfig, ExecutorError};
use shouter_reducer::grid::{Grid, Rank};
use shouter_reducer::header::{Collective, Identity};
use shouter_reducer::kernel::Kernels;
use shouter_reducer::plan::{self, Plan};
use shouter_reducer::recorder::{Recorder, RegisteredTensor};
use shouter_reducer::schedule::Algorithm;
use shouter_reducer::transport::NodeMemory;

use super::annotations::Annotations;
use super::costs;
use super::drive::{Drive, Sibling};
use super::join::{self, Reached, grid, join, meet, reach};
use super::notify::{Notifier, StopNotifier};
use super::outcomes::Outcomes;
use super::schedules::Known;
use super::small::Cells;
use super::start_queue::StartQueue;
use super::stats::Tally;
use super::table::Tables;
use super::transport::{ChannelFacts, Transport};
use super::windows::DirectWindows;
use super::{Group, Job};
use crate::channel::shm::{ANNOUNCEMENTS, NodeSegment};
use crate::channel::up::UpChannels;
use crate::config::{Builder, Config, Idle, Mode};
use crate::engine::{Engine, EngineParts};
use crate::error::Error;
use crate::group::meeting;
use crate::group::rendezvous::ControlLink;
use crate::group::store::{OfLauncher, Store};
use crate::group::watch::{Control, MemberEvent};
use crate::log;
use crate::observe::flight::{DumpTarget, ENGINE, Flight, GROUPS, SIBLINGS};
use crate::observe::metrics::{Exporter, MetricsOf};
use crate::observe::signal::OnSignal;
use crate::observe::{Timeline, TimelineFile};
use crate::runtime::{Clock, CoreAllowance, DriverOptions, IdlePolicy, Poller, fork_generation};

/// Operations that a timeline keeps, and events of the engine: the last ones.
const TIMELINE_EVENTS: usize = 1 << 16;

/// Operations that a rank may have under way; the node segment keeps as many announcements, twice.
const MAX_OPERATIONS: usize = ANNOUNCEMENTS / 2;

/// Handles that are kept for the next operations.
const SPARE: usize = MAX_OPERATIONS;

/// Joins the group that the configuration describes, and returns when all its ranks are there and connected. It waits for them
/// for `rendezvous_deadline` (60 s unless set), then it fails.
///
/// # Errors
/// [`Error::Config`] for a configuration that cannot be used here, [`Error::Join`] with the ranks that did not come or do not fit,
/// [`Error::Device`] for a port, thread or memory that could not be had; each says what to do.
///
/// ```no_run
/// let group = shouter::init(shouter::Config::from_env()?)?;
/// println!("rank {} of {}", group.rank(), group.size());
/// # Ok::<(), shouter::Error>(())
/// ```
pub fn init(mut config: Config) -> Result<Group, Error> {
    log::start_if_asked();
    if let (Some(place), Some(kind)) = (config.store.take(), config.launcher_store.take()) {
        let mut store = OfLauncher::open(&kind).map_err(|why| {
            let (rank, remedy) = (config.rank, kind.remedy());
            Error::join_without(rank, format!("rank {rank} cannot use the launcher's store: {why}; {remedy}"))
        })?;
        meeting::complete(&mut config, place, &mut store)?;
    }
    log::speak_for(config.rank);
    let mut plan = Plan {
        channel_num: config.channel_num,
        overrides: config.schedule,
        levels: config.levels,
        fuse_below: config.fuse_below,
        fuse_bytes: config.fuse_bytes,
        ..Plan::default()
    };
    let rank = Rank(config.rank);
    let mut joined = match config.size {
        1 => None,
        _ => Some(join(&config, &plan)?),
    };
    let grid = grid(&config, joined.as_ref())?;
    check_hosts(&config, &grid).inspect_err(|why| {
        joined.iter_mut().for_each(|joined| joined.give_up(why));
    })?;
    let node = match &mut joined {
        // Where a host has several ranks, the ranks of all hosts have memory for messages to ranks that are no leaders.
        Some(joined) if grid.most_locals() > 1 => {
            let met = meet(&config, &grid, &plan, joined);
            Some(Arc::new(met.inspect_err(|why| joined.give_up(why))?))
        }
        _ => None,
    };
    let Reached { mut up, siblings, device, channels, reasons, offered, mut control, unreached } =
        match joined {
            Some(joined) => reach(&config, &grid, joined)?,
            None => Reached::default(),
        };
    plan.costs = offered.costs();
    let kernels = Kernels::detect();
    let mut executor_config = ExecutorConfig::new(rank, grid, kernels);
    executor_config.eager_bytes = plan.eager_bytes as usize;
    executor_config.max_operations = MAX_OPERATIONS;
    let takes_memory = up.registry().is_some();
    executor_config.one_sided = up.registry().is_some_and(|registry| registry.is_remote());
    let internal = |why: &dyn std::fmt::Display| Error::Internal(why.to_string());
    let mut executor = executor(executor_config).map_err(|why| internal(&why))?;
    let beside = parts_of(node.as_deref(), siblings.len())?;
    // The shards have queues of the same ports, with which the first one registers memory.
    node.iter().chain(beside.iter().flatten()).for_each(|node| register_results(&mut up, node));
    attach(&mut executor, &mut up, node.as_ref())?;
    let idle = idle_policy(&config);
    let (shard, small, groups) = (Recorder::new(), Recorder::new(), Recorder::new());
    let mut rows =
        vec![(ENGINE, shard.records()), ("small operations", small.records()), (GROUPS, groups.records())];
    let recorders: Vec<_> = siblings.iter().map(|_| Recorder::new()).collect();
    rows.extend(recorders.iter().map(|recorder| (SIBLINGS, recorder.records())));
    let flight = Arc::new(Flight::new(dump_place(&config, &grid), rows));
    let cells = match (&node, grid.nodes()) {
        (Some(node), 1) => Some(Cells::new(node.clone(), kernels, idle, small)),
        _ => None,
    };
    let (dead_after, shared) = (config.heartbeat_timeout, node.clone());
    let parts = EngineParts { executor, rank, up, node, dead_after };
    let mut engine = Engine::new(parts, Clock.now());
    let timeline = config.timeline.as_ref().map(|_| {
        let timeline = Timeline::new(rank.0, grid.node_of(rank).to_string(), TIMELINE_EVENTS);
        Arc::new(timeline)
    });
    engine.record((shard, flight.labels()), (groups, flight.group_labels()), timeline.clone());
    let options = DriverOptions { idle: driver_idle_policy(&config, idle), ..DriverOptions::default() };
    let dedicated = (config.mode == Mode::Dedicated).then(|| config.cores.first().copied());
    let submissions = engine.submissions();
    let engines = siblings.into_iter().zip(beside).zip(recorders).map(|((mut up, node), recorder)| {
        let mut executor = self::executor(executor_config).map_err(|why| internal(&why))?;
        attach(&mut executor, &mut up, node.as_ref())?;
        let mut engine = Engine::new(EngineParts { executor, rank, up, node, dead_after }, Clock.now());
        engine.record_beside(recorder);
        Ok(engine)
    });
    let engines = engines.collect::<Result<Vec<_>, Error>>()?;
    if !engines.is_empty() && (1..config.shards as usize).contains(&config.cores.len()) {
        tracing::warn!(
            shards = config.shards,
            cores = ?config.cores,
            "the key cores names fewer cores than this rank has shards: the others run where the scheduler puts them, which may be a core that \
             another shard has; name one for each, or set shards to their number on all ranks"
        );
    }
    let cores = config.cores.iter().copied().map(Some).chain(std::iter::repeat(None));
    let siblings = engines.into_iter().zip(cores.skip(1)).map(|(mut engine, core)| {
        let submissions = engine.submissions();
        Ok(Sibling { drive: Drive::new(engine, options.clone(), Some(core))?, submissions })
    });
    let siblings = siblings.collect::<Result<Vec<_>, Error>>()?;
    let drive = Drive::new(engine, options, dedicated)?.beside(siblings)?;
    if let Some(control) = &mut control {
        // Until all are connected, the helper answers ranks that still connect.
        join::all_connected(control, unreached, &plan, config.rendezvous_deadline)?;
        drive.all().try_for_each(|drive| drive.with(Engine::joined))?;
    }
    let control = control.map(|link| listen(link, &drive)).transpose()?;
    let context = control.as_ref().map(|control| costs::MeasurementContext {
        rank,
        grid: &grid,
        drive: &drive,
        node: shared.as_deref(),
        control,
        kernels,
        idle,
        patience: config.rendezvous_deadline,
    });
    let costs = offered.settle(context.as_ref(), &mut plan)?;
    let now = Clock.now();
    timeline.iter().for_each(|timeline| timeline.joined(now));
    flight.joined(now);
    let on_signal = config.dump_signal.map(|signal| OnSignal::listen(signal, flight.clone()));
    let on_signal = on_signal
        .transpose()
        .map_err(|why| Error::Device(format!("no dump on a signal (dump_signal): {why}")))?;
    let transport = Transport::new(&grid, rank, &channels, reasons);
    tracing::info!(
        size = grid.ranks(),
        hosts = grid.nodes(),
        transport = transport.channels,
        costs = (grid.ranks() > 1).then(|| tracing::field::display(&costs)),
        "the group has come together"
    );
    let tables = Arc::new(Tables::new(rank, grid, plan, Known::default()));
    let names = tables.clone();
    flight.name_tensors(Box::new(move |RegisteredTensor { generation, tensor }| {
        names.named(&Identity::Registered { generation: generation.into(), tensor, instance: 0 })
    }));
    let outcomes = Arc::new(Outcomes {
        rank,
        group: None,
        members: None,
        deadline: config.deadline,
        tables: tables.clone(),
        tally: Tally::default(),
        timeline: timeline.clone(),
        flight: flight.clone(),
        node: shared.as_ref().map(Arc::downgrade),
        driver: drive.weak(),
        notifier: Notifier::new(),
        awaited_ends: drive.awaited_ends(),
        forks: fork_generation(),
    });
    let metrics = exporter(&config, &grid, &drive, &outcomes);
    let timeline = timeline
        .zip(config.timeline.as_deref())
        .map(|(timeline, folder)| TimelineFile::new(timeline, folder, &config.job));
    Ok(Group {
        rank,
        grid,
        job: Arc::new(Job {
            grid,
            node: shared.clone(),
            control,
            drive: drive.clone(),
            metrics,
            _on_signal: on_signal,
            timeline,
            rendezvous_host: config.rendezvous.host.clone(),
        }),
        subset: None,
        drive,
        _stop_notifier: StopNotifier(outcomes.clone()),
        outcomes,
        start_queue: StartQueue::new(Some(submissions), SPARE),
        cells,
        direct: DirectWindows::new(shared.clone()),
        node: shared,
        tables,
        deadline: config.deadline,
        annotations: Annotations::at(0),
        channels: ChannelFacts { transport, device, take_memory: takes_memory },
        #[cfg(feature = "cuda")]
        gpu: super::gpu::Bound::new(&config),
        costs,
    })
}

/// Joins the group of a job whose ranks share a key/value store, such as a launcher's or torch's; else as [`init`].
/// `builder` needs the keys `size` and `rank` (or a launcher's variables for them) and nothing more: rank 0 opens a
/// port that the kernel chooses, makes a key for this job, and puts both into the store with its addresses, and the
/// ranks find out there which of them share a host.
///
/// Any process that can read the store can join the job, and any that can write to it can lead the ranks elsewhere: it
/// has to be as trusted as the job's key. Where the key `key` (or `key_file`) is given on all ranks, that one is used
/// and none is put there. Of the other keys, `addr` and `port` say where rank 0 listens, and `local_size` which ranks
/// share a host. The store may hold the values of an earlier meeting of the same ranks.
///
/// The group may have only some of the ranks that a launcher has started: where `builder` is given another `rank` or `size` than the launcher's, what
/// environment and file say of this rank's place and of the meeting point (`local_rank`, `local_size`, `node`, `addr`, `port`, `levels`) does not hold.
///
/// # Errors
/// As [`init`]; [`Error::Join`] with the store's error, and the rank that did not come to it.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Arc, Mutex};
/// use std::time::{Duration, Instant};
///
/// use shouter::config::{Builder, Environment};
/// use shouter::{Store, StoreError};
///
/// /// Of ranks that are threads of this process.
/// #[derive(Clone, Default)]
/// struct Shared(Arc<Mutex<HashMap<String, Vec<u8>>>>);
///
/// impl Store for Shared {
///     fn put(&mut self, key: &str, value: &[u8]) -> Result<(), StoreError> {
///         self.0.lock().unwrap().insert(key.into(), value.into());
///         Ok(())
///     }
///
///     fn get(&mut self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
///         let begun = Instant::now();
///         loop {
///             if let Some(value) = self.0.lock().unwrap().get(key) {
///                 return Ok(value.clone());
///             }
///             if begun.elapsed() > timeout {
///                 return Err(format!("{key} is not there after {timeout:?}").into());
///             }
///             std::thread::sleep(Duration::from_millis(1));
///         }
///     }
/// }
///
/// let store = Shared::default();
/// let join = |rank: &str| {
///     let builder = Builder::from_environment(Environment::default())?.set("size", "2")?.set("rank", rank)?;
///     shouter::init_through(builder, &mut store.clone())
/// };
/// let sum = |group: shouter::Group| {
///     let mut data = [1.0f32 + group.rank() as f32];
///     group.all_reduce(&mut data, shouter::ReduceOp::Sum)?;
///     group.finalize()?;
///     Ok::<_, shouter::Error>(data[0])
/// };
/// std::thread::scope(|scope| {
///     let other = scope.spawn(|| join("1").and_then(sum));
///     assert_eq!(join("0").and_then(sum)?, 3.0);
///     other.join().unwrap().map(drop)
/// })?;
/// # Ok::<(), shouter::Error>(())
/// ```
pub fn init_through(builder: Builder, store: &mut dyn Store) -> Result<Group, Error> {
    let mut config = builder.through_store().build()?;
    if let Some(place) = config.store.take().filter(|_| config.size > 1) {
        meeting::complete(&mut config, place, store)?;
    }
    init(config)
}

/// Shows the counters of this rank, where that is configured. A job goes on without them.
fn exporter(config: &Config, grid: &Grid, drive: &Drive, outcomes: &Arc<Outcomes>) -> Option<Exporter> {
    let target = config.metrics.as_ref()?;
    let of = MetricsOf {
        job: config.job.clone(),
        rank: config.rank,
        local_rank: config.local_rank,
        host: grid.node_of(Rank(config.rank)).to_string(),
    };
    let (drive, outcomes) = (drive.clone(), outcomes.clone());
    let count = Box::new(move || outcomes.tally.snapshot(&drive).metrics());
    let warn = |why: &std::io::Error| {
        tracing::warn!(
            "this rank's counters cannot be shown at {why}; give each job and each emulated host a port of its own with the key metrics, or a \
             file with %r in its name"
        );
    };
    Exporter::start(target, of, count).inspect_err(warn).ok()
}

/// The target of dumps.
fn dump_place(config: &Config, grid: &Grid) -> DumpTarget {
    let folder = config.dump_folder.clone().unwrap_or_else(std::env::temp_dir);
    if !folder.is_dir() {
        tracing::warn!(?folder, "dump_folder is no folder here; the last events cannot be written to it");
    }
    DumpTarget {
        folder,
        job: config.job.clone(),
        rank: config.rank,
        size: config.size,
        host: grid.node_of(Rank(config.rank)).to_string(),
    }
}

/// Listens to the other ranks' control connections from now on.
fn listen(link: ControlLink, drive: &Drive) -> Result<Control, Error> {
    let engine = drive.weak();
    let report = move |event: MemberEvent| {
        // A group that is being dropped ignores member events.
        let Some(driver) = engine.upgrade() else { return };
        let taken = event.clone();
        let reported = driver.with(move |engine| {
            match taken {
                MemberEvent::Lost(rank) => engine.lost(Clock.now(), Rank(rank)),
                MemberEvent::Left(departure) => engine.left(departure),
                MemberEvent::GaveUp(text) => engine.gave_up(Rank(text.rank), &text.text),
                MemberEvent::PeersNotified => {}
            }
            engine.poll(Clock.now());
        });
        if let Err(error) = reported {
            tracing::debug!(%error, ?event, "the engine does not take events of other ranks any more");
        }
    };
    let control = Control::listen(link, report)
        .map_err(|why| Error::Device(format!("no thread for the control connections: {why}")))?;
    let notice = control.notice();
    drive.with(|engine| engine.report_to(notice))?;
    Ok(control)
}

/// The executor of a group's engine.
#[allow(unsafe_code)]
fn executor(config: ExecutorConfig) -> Result<Executor, ExecutorError> {
    // SAFETY: it goes into an engine, which drops its channel and its accelerator first, and shares the node's memory for as long as it
    // takes polls.
    unsafe { Executor::new(config) }
}

/// The memory of this node for each further shard, where it has some.
fn parts_of(node: Option<&NodeSegment>, shards: usize) -> Result<Vec<Option<Arc<NodeSegment>>>, Error> {
    let Some(node) = node else { return Ok(vec![None; shards]) };
    let parts = node.of_shards(shards);
    let parts =
        parts.ok_or_else(|| Error::Internal("the host's memory has no part for each shard".into()))?;
    Ok(parts.into_iter().map(|part| Some(Arc::new(part))).collect())
}

/// From now on a shard's operations go through the node's memory, if there is one, and its messages reach all ranks.
fn attach(
    executor: &mut Executor,
    up: &mut UpChannels,
    node: Option<&Arc<NodeSegment>>,
) -> Result<(), Error> {
    let Some(node) = node else { return Ok(()) };
    executor.attach_node(&**node).map_err(|why| Error::Internal(why.to_string()))?;
    let ExecutorConfig { grid, rank, .. } = *executor.config();
    up.reach_all(node.clone(), grid, rank);
    Ok(())
}

/// Registers the node's result areas with the channel: a leader's messages to and from other hosts lie there.
#[allow(unsafe_code)]
fn register_results(up: &mut UpChannels, node: &NodeSegment) {
    let Some(registry) = up.registry() else { return };
    for lane in 0..node.lanes() {
        // SAFETY: the segment stays mapped until the channel is dropped, which an engine does first.
        unsafe { registry.register(node.result(lane)) };
    }
}

/// The configured transport must be able to serve these hosts.
fn check_hosts(config: &Config, grid: &Grid) -> Result<(), Error> {
    config.check_locals(grid.most_locals())?;
    for collective in Collective::ALL {
        let Some(algorithm) = config.schedule.of(collective) else { continue };
        if !algorithm.serves(collective, grid) {
            let (key, name) = (plan::word(collective), algorithm.name());
            return Err(Error::Config(format!(
                "schedule = \"{key}:{name}\" needs the same number of ranks on every host, and this job's have different numbers; leave it \
                 out, or name {}",
                Algorithm::general(collective).name()
            )));
        }
    }
    Ok(())
}

/// Spins where every rank of the host has a core of its own, yields where not.
fn idle_policy(config: &Config) -> IdlePolicy {
    match config.idle {
        Some(Idle::Spin) => IdlePolicy::EXCLUSIVE,
        Some(Idle::Yield) => IdlePolicy::SHARED,
        None if config.cores.is_empty() => IdlePolicy::detect(config.local_size as usize),
        None => IdlePolicy::for_ranks(1, CoreAllowance::detect().whole_cores()),
    }
}

/// The same where the engines' drivers and those that wait for them are different threads, in dedicated mode: each rank needs a core more
/// than it has shards then.
fn driver_idle_policy(config: &Config, idle: IdlePolicy) -> IdlePolicy {
    let threads = 1 + config.shards as usize;
    let shares = config.mode == Mode::Dedicated && config.idle.is_none() && config.cores.len() < threads;
    if shares { IdlePolicy::detect(threads * config.local_size as usize) } else { idle }
}
