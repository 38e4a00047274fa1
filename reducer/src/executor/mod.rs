//! Runs schedules.

mod api;

pub use self::api::{
    AbortCause, Completed, Counters, Disposition, ExecutorConfig, OpError, OpId, Progress, Refusal, Request,
    StartError, Subject, View, Why,
};
