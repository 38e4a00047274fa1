"""What goes wrong: the other ranks hear which rank it was, and the process lives."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from backend_common import ENDS_GROUPS, NEW, join, refused, same, start

import shouter
import shouter.torch

BACKEND_ERROR = dist.DistBackendError if NEW else RuntimeError


def again(how: str = "shouter") -> None:
    numbers = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    join(*numbers, backend=how)


def views_that_differ():
    """Ranks that disagree: both views are in the error."""
    rank = dist.get_rank()
    for ours in (
        lambda: dist.all_reduce(torch.ones(3 + rank)),
        lambda: dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank else torch.int32)),
        lambda: dist.all_reduce(torch.ones(4)) if rank else dist.all_gather([torch.ones(4), torch.ones(4)], torch.ones(4)),
        lambda: dist.all_reduce(torch.ones(400_000 + rank), async_op=True).wait(),
    ):
        why = refused(ours, error=shouter.Mismatch)
        assert isinstance(why, shouter.torch.Mismatch) and isinstance(why, BACKEND_ERROR)
        assert why.ours and why.theirs and why.ours != why.theirs and why.rank is not None, vars(why)
        refused(lambda: dist.all_reduce(torch.ones(1)), error=RuntimeError)
        again()


def works_that_nobody_keeps():
    for _ in range(20):
        dist.all_reduce(torch.ones(10_000), async_op=True)
        gc.collect()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(dist.get_world_size())))


def a_group_that_was_left():
    """Newer versions of PyTorch tell the backend, which refuses it from then on. In others a group goes on while somebody holds it."""
    numbers = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    dist.barrier()
    dist.destroy_process_group()
    if ENDS_GROUPS:
        refused(lambda: group.allreduce([torch.ones(1)]).wait(), error=Exception)
    else:
        tensor = torch.ones(1)
        group.allreduce([tensor]).wait()
        same(tensor, torch.full((1,), float(numbers[1])))
        del group
    join(*numbers)


def an_abort():
    """What is under way ends, on all ranks, and names who has left."""
    rank = dist.get_rank()
    if not hasattr(dist.distributed_c10d, "_abort_process_group"):
        return "this PyTorch has no abort"
    if rank == 0:
        # The message arrives when the other rank's operation is in progress.
        dist.recv(torch.empty(1), 1)
        dist.distributed_c10d._abort_process_group()
        join(0, 2)
    else:
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        dist.send(torch.ones(1), 0)
        why = refused(work.wait, error=shouter.torch.PeerFailed)
        assert why.rank == 0, vars(why)
        again()
    dist.barrier()


def a_rank_that_raises():
    """Where nobody catches it, the other one has the exception's text. Each in turn."""
    for culprit in range(dist.get_world_size()):
        dist.barrier()
        if dist.get_rank() == culprit:
            try:
                raise ValueError(f"no data for rank {culprit}")
            except ValueError:
                sys.excepthook(*sys.exc_info())  # as the interpreter does before it ends
        else:
            said = f"it has given up: ValueError: no data for rank {culprit}"
            why = refused(lambda: dist.all_reduce(torch.ones(1000)), said, error=shouter.ShouterError)
            assert why.rank == culprit and why.reason == "aborted" and isinstance(why, BACKEND_ERROR), vars(why)
        again()
    dist.barrier()


def a_rank_that_is_killed():
    """In the middle of a training step; the other one names it, and goes on alone."""
    rank = dist.get_rank()
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        parallel(torch.ones(4, 100)).sum().backward()
    except RuntimeError as why:
        assert "rank 1" in str(why), why
    else:
        raise AssertionError("nothing was raised")
    # The key heartbeat_timeout, and a second.
    assert time.monotonic() - begun < 11
    # DistributedDataParallel's C++ passes on only the text; a call raises the exception with its fields.
    why = refused(lambda: dist.all_reduce(torch.ones(3)), error=RuntimeError)
    assert why.rank == 1, vars(why)
    dist.destroy_process_group()
    join(0, 1)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.ones(3))


def stop() -> None:
    """The interpreter ends with a receive under way, whose future something hangs on, and without leaving the group."""
    receive = dist.irecv(torch.empty(3), 0, tag=7) if NEW else dist.distributed_c10d._get_default_group().recv([torch.empty(3)], 0, 7)
    receive.get_future().then(lambda future: future.value())
    assert not receive.is_completed()


CHECKS = [views_that_differ, works_that_nobody_keeps, a_group_that_was_left, an_abort, a_rank_that_raises, a_rank_that_is_killed]
ENDS = [0, -signal.SIGKILL]
