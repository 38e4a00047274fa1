//! A build without CUDA: memory of a GPU is refused.
#![allow(unsafe_code)]

use shouter_reducer::schedule::Problem;

use super::element::Buffer;
use super::p2p::Message;
use super::staging::{Sides, Staged, Staging};
use super::{CollectiveCall, Group, Work};
use crate::error::{Call, Error, TensorId};

fn refused<T>() -> Result<T, Error> {
    Err(Error::accelerator("this build has no CUDA; build it with the feature cuda"))
}

/// The calls that a build with CUDA serves. None of them is unsafe here.
impl Group {
    pub(super) unsafe fn run_collective_cuda(&self, _: &CollectiveCall, _: u64) -> Result<(), Error> {
        refused()
    }

    pub(super) unsafe fn start_collective_cuda(&self, _: &CollectiveCall, _: u64) -> Result<Work, Error> {
        refused()
    }

    pub(super) unsafe fn push_cuda(&self, _: TensorId, _: u64, _: u64) -> Result<Work, Error> {
        refused()
    }

    pub(super) unsafe fn run_small_on_gpu(
        &self,
        _: &Problem,
        _: (Buffer, Buffer),
        _: (Option<f64>, u64),
    ) -> Result<(), Error> {
        refused()
    }

    pub(super) unsafe fn stage_on_gpu(
        &self,
        _: Problem,
        _: Sides,
        _: (&Staging, u64),
        _: (Call, String),
    ) -> Result<(Problem, Buffer, Buffer, Option<Staged>), Error> {
        refused()
    }

    pub(super) unsafe fn stage_sides(
        &self,
        _: Sides,
        _: (&Staging, u64),
        _: (Call, String),
    ) -> Result<(Buffer, Buffer, Option<Staged>), Error> {
        refused()
    }

    pub(super) unsafe fn stage_message_on_gpu(
        &self,
        _: &Message,
        _: u64,
        _: Call,
    ) -> Result<(Buffer, Option<Staged>), Error> {
        refused()
    }
}
