//! A build without CUDA: memory of a GPU is refused.
#![allow(unsafe_code)]

use shouter_reducer::schedule::Problem;

use super::element::Buffer;
use super::p2p::Message;
use super::staging::{Sides, Staged, Staging};
use super::{CollectiveCall, Group, Work};
use crate::error::{Call, Error, TensorId};

/// The calls that a build with CUDA serves. None of them is unsafe here.
macro_rules! refused {
    ($($call:ident($($argument:ty),*) -> $result:ty;)*) => {
        impl Group {
            $(pub(super) unsafe fn $call(&self, $(_: $argument),*) -> Result<$result, Error> {
                Err(Error::accelerator("this build has no CUDA; build it with the feature cuda"))
            })*
        }
    };
}

refused! {
    run_collective_cuda(&CollectiveCall, u64) -> ();
    start_collective_cuda(&CollectiveCall, u64) -> Work;
    push_cuda(TensorId, u64, u64) -> Work;
    run_small_on_gpu(&Problem, (Buffer, Buffer), (Option<f64>, u64)) -> ();
    stage_sides(Sides, (&Staging, u64), (Call, String)) -> (Buffer, Buffer, Option<Staged>);
    stage_message_on_gpu(&Message, u64, Call) -> (Buffer, Option<Staged>);
}
