//! Log lines of the library, to standard error or to a callback.
//!
//! The library logs through `tracing`. A Rust program that has a subscriber of its own gets the events there, and
//! nothing here changes that. A program without one, such as every C or Python program, gets [`start`]: one line for
//! each event, with the rank that it is about, filtered by `SHOUTER_LOG`.
//!
//! `SHOUTER_LOG` is a level (`error`, `warn`, `info`, `debug`, `trace`, `off`), or levels by module, such as
//! `warn,shouter::channel=debug`. The default is `warn`.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber, span};
use tracing_subscriber::filter::Targets;

/// The variable that holds the filter.
const VARIABLE: &str = "SHOUTER_LOG";

/// Stands for no rank.
const NOBODY: u32 = u32::MAX;

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// How much it matters.
    pub level: Level,
    /// The rank that logs it, once it is known.
    pub rank: Option<u32>,
    /// Module, message and fields: one line, without control characters.
    pub text: &'a str,
}

/// A callback that takes the lines in place of standard error. Any thread may call it, also those that drive the
/// network.
pub type Sink = Box<dyn Fn(&Line<'_>) + Send + Sync>;

/// Why the log stays as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The filter cannot be read.
    #[error(
        "'{filter}' is no log filter ({why}); use error, warn, info, debug, trace or off, or a list such as \
         warn,shouter::channel=debug"
    )]
    Filter {
        /// The filter as given.
        filter: String,
        /// The reason.
        why: String,
    },
    /// The program has a `tracing` subscriber.
    #[error("the program has a tracing subscriber of its own, which hears all events; set the filter there")]
    Subscriber,
    /// The callback calls for its own replacement.
    #[error("the log was to be changed by its own callback; change it from elsewhere")]
    Callback,
}

static FILTER: RwLock<Option<Targets>> = RwLock::new(None);
/// Locked for reading while a callback runs, so that one that was replaced is not called any more.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);
static PROCESS: AtomicU32 = AtomicU32::new(NOBODY);

thread_local! {
    static RANK: Cell<u32> = const { Cell::new(NOBODY) };
    static IN_SINK: Cell<bool> = const { Cell::new(false) };
}

/// Lets this thread log for `rank` from now on, as do threads for which no rank was set.
pub(crate) fn speak_for(rank: u32) {
    PROCESS.store(rank, Ordering::Relaxed);
    take_over(Some(rank));
}

/// Lets this thread log for `rank` from now on: that of the thread which made it.
pub(crate) fn take_over(rank: Option<u32>) {
    RANK.set(rank.unwrap_or(NOBODY));
}

/// Starts a thread that logs for the rank that this one logs for.
pub(crate) fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let rank = spoken_for();
    thread::Builder::new().name(name.into()).spawn(move || {
        take_over(rank);
        body()
    })
}

/// The rank that this thread logs for.
pub(crate) fn spoken_for() -> Option<u32> {
    let own = RANK.try_with(Cell::get).unwrap_or(NOBODY);
    let rank = if own == NOBODY { PROCESS.load(Ordering::Relaxed) } else { own };
    (rank != NOBODY).then_some(rank)
}

/// Sends the log to standard error, filtered by `SHOUTER_LOG`, unless a subscriber is installed already. A filter that
/// cannot be read is reported there, and the default holds.
pub fn start() {
    if tracing::dispatcher::has_been_set() {
        return;
    }
    let filter = of_environment().unwrap_or_else(|why| {
        eprintln!("{VARIABLE}: {why}");
        usual()
    });
    // If another thread was quicker, its subscriber serves as well.
    let _ = install(filter, None);
}

/// As [`start`], where `SHOUTER_LOG` is set: a Rust program without it may want a subscriber of its own later.
pub(crate) fn start_if_asked() {
    if std::env::var_os(VARIABLE).is_some() {
        start();
    }
}

/// Sets the filter (`None`: that of `SHOUTER_LOG`) and the sink (`None`: standard error). The sink set before is not
/// called any more when this has returned.
///
/// # Errors
/// [`LogError`]; nothing has changed then.
pub fn set(filter: Option<&str>, sink: Option<Sink>) -> Result<(), LogError> {
    if IN_SINK.get() {
        return Err(LogError::Callback);
    }
    let filter = match filter {
        Some(text) => parse(text)?,
        None => of_environment()?,
    };
    install(filter, sink)
}

fn install(filter: Targets, sink: Option<Sink>) -> Result<(), LogError> {
    static OURS: OnceLock<bool> = OnceLock::new();
    if !*OURS.get_or_init(|| tracing::subscriber::set_global_default(Log).is_ok()) {
        return Err(LogError::Subscriber);
    }
    *FILTER.write().unwrap_or_else(PoisonError::into_inner) = Some(filter);
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

fn usual() -> Targets {
    Targets::new().with_default(LevelFilter::WARN)
}

fn of_environment() -> Result<Targets, LogError> {
    match std::env::var(VARIABLE) {
        Ok(text) if !text.trim().is_empty() => parse(&text),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(usual()),
        Err(std::env::VarError::NotUnicode(text)) => Err(LogError::Filter {
            filter: text.to_string_lossy().into_owned(),
            why: "it is not UTF-8".into(),
        }),
    }
}

/// A level, or levels by module. A word that is no level is refused, where `Targets` would take it for a module.
fn parse(text: &str) -> Result<Targets, LogError> {
    let wrong = |why: String| LogError::Filter { filter: text.into(), why };
    let known = |word: &str| word.parse::<LevelFilter>().is_ok();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    if let Some(part) = parts.clone().find(|part| !part.contains("::") && !part.contains('=') && !known(part))
    {
        return Err(wrong(format!("'{part}' is no level")));
    }
    parts
        .collect::<Vec<_>>()
        .join(",")
        .parse()
        .map_err(|why: tracing_subscriber::filter::ParseError| wrong(why.to_string()))
}

/// The subscriber. It takes events only: the library has no spans.
struct Log;

impl Log {
    fn takes(metadata: &Metadata<'_>) -> bool {
        let filter = FILTER.read().unwrap_or_else(PoisonError::into_inner);
        metadata.is_event()
            && filter.as_ref().is_some_and(|filter| filter.would_enable(metadata.target(), metadata.level()))
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if Self::takes(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        Self::takes(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let filter = FILTER.read().unwrap_or_else(PoisonError::into_inner);
        let filter = filter.as_ref()?;
        filter.iter().map(|(_, level)| level).chain(filter.default_level()).max()
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        // The log lines of a callback's own calls would call it again.
        if IN_SINK.try_with(Cell::get).unwrap_or(true) {
            return;
        }
        let mut said = Said::default();
        event.record(&mut said);
        let metadata = event.metadata();
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = write!(OneLine(&mut text), "{}: {}{}", metadata.target(), said.message, said.fields);
        let line = Line { level: *metadata.level(), rank: spoken_for(), text: &text };
        match &*SINK.read().unwrap_or_else(PoisonError::into_inner) {
            Some(sink) => {
                let _inside = Inside::enter();
                sink(&line);
            }
            None => {
                let line = format!("{} {line}\n", Timestamp(SystemTime::now()));
                // An error of standard error cannot be reported. One call, so that lines of several ranks do not mix.
                let _ = std::io::stderr().lock().write_all(line.as_bytes());
            }
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The thread is in the callback while this lives.
struct Inside;

impl Inside {
    fn enter() -> Self {
        IN_SINK.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IN_SINK.set(false);
    }
}

/// Level, rank and text.
impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5} ", self.level.as_str())?;
        if let Some(rank) = self.rank {
            write!(f, "rank {rank} ")?;
        }
        f.write_str(self.text)
    }
}

/// An event's message, and its other fields as ` name=value`.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// Writes control characters, line ends among them, as escapes.
struct OneLine<'a>(&'a mut String);

impl fmt::Write for OneLine<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            match c.is_control() {
                true => self.0.extend(c.escape_default()),
                false => self.0.push(c),
            }
        }
        Ok(())
    }
}

/// A time as RFC 3339 writes it, in UTC, to the microsecond.
struct Timestamp(SystemTime);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
        // Years of 365.2425 days that begin in March, from 0000-03-01 on, 719,468 days before 1970-01-01.
        let day = days + 719_468;
        let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
        let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let from_march = (5 * of_year + 2) / 153;
        let (day, month) = (of_year - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12 + 1);
        let year = era * 400 + year + i64::from(month <= 2);
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let micros = since.subsec_micros();
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

#[cfg(test)]
mod tests;
