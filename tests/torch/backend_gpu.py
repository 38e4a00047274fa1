"""Tensors on GPUs, by stand-ins: this PyTorch has no CUDA, so they have memory of the simulated driver, and say what a tensor on a GPU says."""

from __future__ import annotations

import ctypes
import os
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from backend_common import refused, same, start, stop  # noqa: F401

from shouter.torch._backend import Operations
from shouter.torch._groups import core_of
from shouter.torch._tensors import stream_of

SIMULATED = os.environ.get("LD_LIBRARY_PATH", "").endswith("cuda-sim")
NONE = "the simulated CUDA driver is not built (scripts/lib/cuda-sim/build target/cuda-sim)"
rank, size = dist.get_rank, dist.get_world_size
_cuda: Any = None
_streams: list[Any] = []


def cuda() -> Any:
    """The simulated driver, with its first device in use, and PyTorch as it would be with a stream of it."""
    global _cuda
    if _cuda is None:
        _cuda = ctypes.CDLL("libcuda.so.1")
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        assert _cuda.cuInit(0) == 0
        assert _cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and _cuda.cuCtxSetCurrent(context) == 0
        assert _cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0

        def current_stream(device: torch.device) -> Any:
            assert device.type == "cuda"
            _streams.append(stream.value)
            return SimpleNamespace(cuda_stream=stream.value)

        torch.cuda.current_stream = current_stream
    return _cuda


class OnGpu:
    """What the backend asks of a tensor on a GPU."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like.contiguous()
        self.at = ctypes.c_uint64()
        self.bytes = ctypes.c_size_t(like.numel() * like.element_size())
        assert cuda().cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(max(1, self.bytes.value))) == 0
        assert cuda().cuMemcpyHtoD_v2(self.at, ctypes.c_void_p(self.like.data_ptr()), self.bytes) == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.like, name)

    def data_ptr(self) -> int:
        return self.at.value

    def get(self) -> torch.Tensor:
        got = torch.empty_like(self.like)
        assert cuda().cuMemcpyDtoH_v2(ctypes.c_void_p(got.data_ptr()), self.at, self.bytes) == 0
        return got


def backend() -> Operations:
    """The calls of a group that has the default group's ranks."""
    calls = Operations()
    calls._open(core_of(None), timedelta(seconds=60))
    return calls


def a_gpus_stream_goes_with_its_tensors():
    if not SIMULATED:
        return NONE
    on_gpu, on_host = OnGpu(torch.ones(3)), torch.ones(3)
    before = len(_streams)
    assert stream_of(on_host) is None and stream_of(None) is None and stream_of((on_host, None)) is None
    assert len(_streams) == before
    assert stream_of(on_gpu) == stream_of((None, on_gpu)) == _streams[-1] != 0


def collectives_take_tensors_on_gpus():
    if not SIMULATED:
        return NONE
    calls, me, n = backend(), rank(), size()
    x = OnGpu(torch.full((1000,), float(me + 1)))
    work = calls.allreduce([x], dist.AllreduceOptions())
    assert work.wait() and work.is_success()
    same(x.get(), torch.full((1000,), float(n * (n + 1) // 2)))
    own, all_of = OnGpu(torch.full((7,), me)), OnGpu(torch.zeros(7 * n, dtype=torch.int64))
    calls.all_gather_single(all_of, own).wait()
    same(all_of.get(), torch.arange(n).repeat_interleave(7))
    # Rank r sends r + 1 numbers to each.
    given, taken = OnGpu(torch.full((n * (me + 1),), me)), OnGpu(torch.zeros(n * (n + 1) // 2, dtype=torch.int64))
    calls.all_to_all_single(taken, given, [r + 1 for r in range(n)], [me + 1] * n).wait()
    same(taken.get(), torch.cat([torch.full((r + 1,), r) for r in range(n)]))
    refused(lambda: calls.all_gather_single(torch.zeros(7 * n, dtype=torch.int64), own), "one device")


def messages_go_between_gpus():
    if not SIMULATED:
        return NONE
    calls, me, n = backend(), rank(), size()
    sent, come = OnGpu(torch.arange(50_000) + me), OnGpu(torch.zeros(50_000, dtype=torch.int64))
    works = [calls.recv([come], (me - 1) % n, 3), calls.send([sent], (me + 1) % n, 3)]
    assert all(work.wait() for work in works)
    same(come.get(), torch.arange(50_000) + (me - 1) % n)


CHECKS = [a_gpus_stream_goes_with_its_tensors, collectives_take_tensors_on_gpus, messages_go_between_gpus]
