"""Messages between two ranks."""

from __future__ import annotations

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from backend_common import BY_DEVICE, of, refused, same, start, stop

import shouter
import shouter.torch


def rank() -> int:
    return dist.get_rank()


def ring() -> tuple[int, int]:
    """The rank before this one, and the one behind it."""
    size = dist.get_world_size()
    return (rank() - 1) % size, (rank() + 1) % size


def sends_and_receives():
    before, behind = ring()
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16, torch.bfloat16):
        for shape in ((3, 5), (), (0,), (40_000,)):
            tensor = torch.empty(shape).to(dtype)
            if rank() % 2:
                dist.send(of(rank(), dtype, shape), behind)
                assert dist.recv(tensor, before) == before
            else:
                work = dist.isend(of(rank(), dtype, shape), behind)
                gc.collect()
                dist.recv(tensor, before)
                work.wait()
            same(tensor, of(before, dtype, shape))
    # With strides.
    whole = torch.zeros(4, 2)
    work = dist.irecv(whole[:, 0], before)
    dist.send(of(rank(), shape=(4, 2))[:, 1], behind)
    work.wait()
    same(whole[:, 0].contiguous(), of(before, shape=(4, 2))[:, 1].contiguous())
    assert (whole[:, 1] == 0).all()


def tags_in_any_order():
    before, behind = ring()
    tensors = [torch.empty(2) for _ in range(3)]
    receives = [dist.irecv(tensors[tag], before, tag=tag) for tag in (2, 0, 1)]
    sends = [dist.isend(torch.full((2,), 10.0 * rank() + tag), behind, tag=tag) for tag in (0, 1, 2)]
    gc.collect()
    for work in receives + sends:
        work.wait()
    for tag, tensor in enumerate(tensors):
        same(tensor, torch.full((2,), 10.0 * before + tag))


def a_message_from_anyone():
    if rank() > 0:
        dist.send(torch.full((2,), float(rank())), 0, tag=7)
    else:
        senders = set()
        for _ in range(1, dist.get_world_size()):
            tensor = torch.empty(2)
            sender = dist.recv(tensor, tag=7)
            same(tensor, torch.full((2,), float(sender)))
            senders.add(sender)
        assert senders == set(range(1, dist.get_world_size()))
    dist.barrier()


def batches():
    before, behind = ring()
    received = torch.empty(3, 5)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, of(rank()), behind), dist.P2POp(dist.irecv, received, before)])
    gc.collect()
    for work in works:
        work.wait()
    same(received, of(before))


def works_are_tested():
    before, behind = ring()
    received = torch.empty(3, 5)
    receive = dist.irecv(received, before)
    # The message is sent after all ranks have looked.
    assert not receive.is_completed()
    dist.barrier()
    dist.send(of(rank()), behind)
    receive.wait()
    assert receive.is_completed()
    same(received, of(before))


def sizes_that_differ():
    if rank() == 0:
        dist.send(torch.ones(3), 1)
    elif rank() == 1:
        why = refused(lambda: dist.recv(torch.empty(5), 0), "3 elements", "5", error=RuntimeError)
        assert not isinstance(why, shouter.Mismatch) or why.rank == 0
    dist.barrier()
    refused(lambda: dist.send(torch.ones(3).to_sparse(), ring()[1]), "parse", error=Exception)


def a_barrier_that_names_who_is_missing():
    if not BY_DEVICE:
        return "monitored_barrier of this PyTorch takes no backend but gloo"
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    if rank() != 1:
        why = refused(lambda: dist.monitored_barrier(timeout=timedelta(seconds=0.5)), "monitored_barrier", error=shouter.torch.Deadline)
        assert isinstance(why, dist.DistBackendError)
        assert why.missing == [1] if rank() == 0 else why.missing == [0], why.missing
    # The group goes on.
    dist.barrier()


def a_barrier_that_failed_leaves_nothing_under_way():
    if not BY_DEVICE:
        return "monitored_barrier of this PyTorch takes no backend but gloo"
    every = dist.new_group()
    if rank() == 0:
        refused(lambda: dist.monitored_barrier(every, timeout=timedelta(seconds=0.2)), "monitored_barrier", error=shouter.torch.Deadline)
    dist.barrier()
    # A rank that leaves in the middle of a receive ends the group for the others.
    if rank() == 0:
        dist.destroy_process_group(every)
    dist.barrier()
    if rank() == 1:
        dist.send(torch.ones(2), 2, every)
    elif rank() == 2:
        received = torch.zeros(2)
        dist.recv(received, 1, every)
        same(received, torch.ones(2))
    dist.barrier()
    if rank() > 0:
        dist.destroy_process_group(every)


CHECKS = [
    sends_and_receives,
    tags_in_any_order,
    a_message_from_anyone,
    batches,
    works_are_tested,
    sizes_that_differ,
    a_barrier_that_names_who_is_missing,
    a_barrier_that_failed_leaves_nothing_under_way,
]
