"""Groups of some ranks, and a job that comes together again."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from backend_common import BY_DEVICE, ENDS_GROUPS, NEW, VERSION, join, of, refused, same, start, stop

import shouter
import shouter.torch
from shouter.torch._groups import leave_all


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def groups_that_overlap():
    low, odd, alone = dist.new_group([0, 1, 2]), dist.new_group([1, 3]), dist.new_group([2])
    for group, members in ((low, [0, 1, 2]), (odd, [1, 3]), (alone, [2])):
        if rank() not in members:
            continue
        tensor = of(rank())
        dist.all_reduce(tensor, group=group)
        same(tensor, sum(of(member) for member in members))
        tensor = of(rank())
        dist.broadcast(tensor, members[-1], group=group)
        same(tensor, of(members[-1]))
        outputs = [torch.empty(3, 5) for _ in members]
        dist.all_gather(outputs, of(rank()), group=group)
        same(torch.stack(outputs), torch.stack([of(member) for member in members]))
    if rank() in (1, 3):
        dist.destroy_process_group(odd)
        if ENDS_GROUPS:
            refused(lambda: dist.all_reduce(of(0), group=odd), error=Exception)
    dist.barrier()


def messages_in_a_group():
    group, tensor = dist.new_group([0, 1, 2, 3]), torch.empty(3, 5)
    before, behind = (rank() - 1) % size(), (rank() + 1) % size()
    receive = dist.irecv(tensor, before, group=group)
    dist.send(of(rank()), behind, group=group)
    receive.wait()
    same(tensor, of(before))


def objects_in_a_group():
    group = dist.new_group([0, 2, 3])
    if rank() != 1:
        everything = [None] * 3
        dist.all_gather_object(everything, rank(), group=group)
        assert everything == [0, 2, 3]
    dist.barrier()


def groups_used_by_threads_at_once():
    groups = [dist.new_group(), dist.new_group()]
    wrong = []

    def use(group, factor):
        try:
            for turn in range(40):
                tensor = torch.full((100 * factor,), float(turn + rank()))
                dist.all_reduce(tensor, group=group)
                same(tensor, torch.full((100 * factor,), float(turn * size() + sum(range(size())))))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(group, factor)) for factor, group in enumerate(groups, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def a_group_that_is_split():
    if VERSION < (2, 15):
        return "before PyTorch 2.15 split_group is for groups with a GPU"
    halves = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    tensor = of(rank())
    dist.all_reduce(tensor, group=halves)
    first = rank() // 2 * 2
    same(tensor, of(first) + of(first + 1))


def two_dimensional_mesh():
    if not NEW:
        return "PyTorch 1.13 has no DeviceMesh"
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    tensor = of(rank())
    dist.all_reduce(tensor, group=mesh.get_group("shard"))
    first = rank() // 2 * 2
    same(tensor, of(first) + of(first + 1))


def gloo_beside_it():
    group = dist.new_group(backend="gloo")
    tensor = of(rank())
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    assert work.is_completed()
    same(tensor, sum(of(peer) for peer in range(size())))
    tensor = of(rank())
    dist.all_reduce(tensor)
    same(tensor, sum(of(peer) for peer in range(size())))


def another_job():
    """Groups under another backend join by themselves; then the job ends, and comes together once more."""
    numbers = rank(), size()
    stop()
    join(*numbers, backend="gloo")
    group = dist.new_group([0, 1, 3], backend="shouter")
    if rank() != 2:
        tensor = of(rank())
        dist.all_reduce(tensor, group=group)
        same(tensor, of(0) + of(1) + of(3))
    stop()
    join(*numbers)
    tensor = of(rank())
    dist.all_reduce(tensor)
    same(tensor, sum(of(peer) for peer in range(size())))


def a_backend_for_each_device():
    if not NEW:
        return "PyTorch 1.13 has one backend for all devices"
    numbers = rank(), size()
    stop()
    join(*numbers, backend="cpu:shouter,cuda:gloo")
    tensor = of(rank(), device="cpu")
    dist.all_reduce(tensor)
    same(tensor, sum(of(peer, device="cpu") for peer in range(size())))
    assert "shouter" in dist.get_backend_config()
    if torch.cuda.is_available():
        tensor = of(rank(), device="cuda")
        if BY_DEVICE:
            dist.all_reduce(tensor)
            same(tensor, sum(of(peer, device="cuda") for peer in range(size())))
        else:
            refused(lambda: dist.all_reduce(tensor), "cuda:gloo", "new_group")


def calls_compared_in_detail():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: PyTorch compares the calls of all ranks before each."""
    if not BY_DEVICE:
        return "this PyTorch does not wrap groups that are written in Python"
    numbers = rank(), size()
    stop()
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        join(*numbers)
        tensor = of(rank())
        dist.all_reduce(tensor)
        same(tensor, sum(of(peer) for peer in range(size())))
        shape = (2,) if rank() == 1 else (3,)
        refused(lambda: dist.all_reduce(torch.ones(shape)), "shape", error=RuntimeError)
    finally:
        dist.set_debug_level(level)


def time_outs_of_their_own():
    """A group may have a longer one than the default group."""
    numbers = rank(), size()
    stop()
    join(*numbers, seconds=2)
    patient = dist.new_group(timeout=timedelta(seconds=60))
    hasty = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    if rank() == 1:
        time.sleep(3)
    tensor = of(rank())
    dist.all_reduce(tensor, group=patient)
    same(tensor, sum(of(peer) for peer in range(size())))
    # Rank 1 comes when rank 0 has waited for it in vain.
    for turn in range(2):
        if rank() == turn:
            why = refused(lambda: dist.all_reduce(of(0), group=hasty), error=shouter.ShouterError)
            assert why.missing == ([] if rank() else [1]), vars(why)
        dist.barrier(group=patient)
    stop()
    join(*numbers)


def the_librarys_group():
    """Its counters and its memory, through PyTorch's group; a timeline is there when the process has left."""
    library = shouter.torch.group()
    assert (library.rank, library.size) == (rank(), size()) and "share memory" in library.transport()
    before = library.stats()["in_place"]
    shared = shouter.torch.empty(1000, 300)
    assert shared.shape == (1000, 300) and shared.dtype == torch.float32 and not shared.any()
    shared += rank() + 1
    dist.all_reduce(shared)
    assert (shared == sum(range(1, size() + 1))).all()
    assert library.stats()["in_place"] == before + 1, "it was copied"
    halves = shouter.torch.empty((7,), dtype=torch.float16)
    assert halves.dtype == torch.float16 and shouter.torch.empty(3, 0).shape == (3, 0) and shouter.torch.empty().shape == ()
    part = dist.new_group([0, 2])
    if rank() in (0, 2):
        assert shouter.torch.group(part).size == 2
        same(shouter.torch.empty(4, group=part), torch.zeros(4))
    gloo = dist.new_group(backend="gloo")
    for call in (shouter.torch.group, lambda group: shouter.torch.empty(1, group=group)):
        refused(lambda: call(gloo), "another backend")
    refused(lambda: library.write_timeline("/tmp/none"), "SHOUTER_TIMELINE")
    refused(lambda: shouter.torch.empty(-2, -3), "-2")
    if rank() not in (0, 2):
        refused(lambda: shouter.torch.group(part), "no member")
    numbers = rank(), size()
    stop()
    refused(lambda: shouter.torch.group(), "init_process_group")
    refused(lambda: library.stats(), "closed by this process", error=shouter.Closed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOUTER_TIMELINE"] = folder + "/new"
        join(*numbers)
        del os.environ["SHOUTER_TIMELINE"]
        dist.all_reduce(torch.ones(3))
        child = os.fork()
        if child == 0:
            # It has its parent's group, and writes no timeline of it.
            leave_all()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0 and not list(Path(folder, "new").iterdir())
        stop()
        (file,) = Path(folder, "new").iterdir()
        assert file.name.startswith("timeline-") and f"-rank{numbers[0]}-" in file.name, file
        assert "all-reduce" in file.read_text()
    join(*numbers)


def joining_twice():
    refused(lambda: dist.init_process_group("shouter", rank=0, world_size=1), "twice", error=Exception)


CHECKS = [
    groups_that_overlap,
    messages_in_a_group,
    objects_in_a_group,
    groups_used_by_threads_at_once,
    a_group_that_is_split,
    two_dimensional_mesh,
    gloo_beside_it,
    time_outs_of_their_own,
    the_librarys_group,
    joining_twice,
    another_job,
    a_backend_for_each_device,
    calls_compared_in_detail,
]
