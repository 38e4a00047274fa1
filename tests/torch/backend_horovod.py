"""Horovod's interface."""

from __future__ import annotations

import copy
import inspect
import os
import random
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

import shouter
import shouter.horovod.torch as hvd
from shouter.horovod._join import join
from shouter.horovod._names import Names, Tensor
from shouter.horovod.torch._operations import reduce_by

SIZE = 3


def start(rank: int, size: int, store: str) -> None:
    """`hvd.init()` takes the job that there is."""
    assert not hvd.is_initialized()
    shouter.init(rank=rank, size=size, store=dist.FileStore(store, size), deadline="20s")
    unjoined()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        os.environ["HOROVOD_TIMELINE"] = "/nowhere.json"
        hvd.init()
        del os.environ["HOROVOD_TIMELINE"]
    assert any("SHOUTER_TIMELINE" in str(each.message) for each in said), said
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (rank, SIZE, rank, SIZE)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)


def unjoined() -> None:
    """Whatever is called before `init`, or after `shutdown`, says so."""
    one = torch.ones(1, requires_grad=True)
    for call in (
        hvd.rank,
        hvd.barrier,
        hvd.join,
        lambda: hvd.allreduce(torch.ones(1)),
        lambda: hvd.broadcast_parameters({"one": torch.ones(1)}, root_rank=0),
        lambda: hvd.DistributedOptimizer(torch.optim.SGD([one], lr=0.1)),
        lambda: hvd.ProcessSet([0]).rank(),
    ):
        refused(call, "has not joined the job; call hvd.init() first")


def stop() -> None:
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized() and not shouter.is_initialized()
    unjoined()


def refused(call, *words, error=shouter.ArgumentError):
    try:
        call()
    except error as why:
        assert all(word in str(why) for word in words), (str(why), words)
        return why
    raise AssertionError(("not refused", words))


def of(rank, shape=(4, 3), dtype=torch.float32):
    generator = torch.Generator(device="cpu").manual_seed(100 + rank)
    return torch.randint(1, 5, shape, generator=generator, device="cpu").to(torch.empty(0).device, dtype)


def every(shape=(4, 3), dtype=torch.float32):
    return torch.stack([of(rank, shape, dtype) for rank in range(SIZE)])


def reductions_of_every_kind():
    own = of(hvd.rank())
    expected = {hvd.Sum: every().sum(0), hvd.Average: every().mean(0), hvd.Min: every().amin(0), hvd.Max: every().amax(0), hvd.Product: every().prod(0)}
    for op, result in expected.items():
        assert torch.allclose(hvd.allreduce(own, op=op), result), op
    assert torch.equal(own, of(hvd.rank())), "an input was written"
    assert torch.allclose(hvd.allreduce(own), expected[hvd.Average])
    assert torch.equal(hvd.allreduce(own, average=False), expected[hvd.Sum])
    assert torch.equal(hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), expected[hvd.Sum] * 2)
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        found = hvd.allreduce(own, op=hvd.Sum, compression=compression)
        assert found.dtype == torch.float32 and torch.equal(found, expected[hvd.Sum])
        # Whole numbers are sent as they are.
        assert torch.equal(hvd.allreduce(own.long(), op=hvd.Sum, compression=compression), expected[hvd.Sum].long())
    turned = of(hvd.rank()).t()
    assert hvd.allreduce_(turned, op=hvd.Sum) is turned and torch.equal(turned, expected[hvd.Sum].t())
    single = torch.tensor(float(hvd.rank()))
    assert hvd.allreduce(single, op=hvd.Sum).shape == () and hvd.allreduce(single, op=hvd.Sum) == 3
    parts = hvd.grouped_allreduce([own, own * 2], op=hvd.Sum, name="both")
    assert torch.equal(parts[0], expected[hvd.Sum]) and torch.equal(parts[1], 2 * expected[hvd.Sum])
    into = [own.clone(), own.clone()]
    hvd.grouped_allreduce_(into, op=hvd.Sum)
    assert all(torch.equal(tensor, expected[hvd.Sum]) for tensor in into)
    handle = hvd.allreduce_async(own, op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert torch.equal(hvd.synchronize(handle), expected[hvd.Sum]) and torch.equal(hvd.synchronize(handle), expected[hvd.Sum])


def moves():
    rank = hvd.rank()
    rows = [of(each, (each + 1, 2)) for each in range(SIZE)]
    assert torch.equal(hvd.allgather(rows[rank]), torch.cat(rows))
    none = torch.zeros(0, 2) if rank == 1 else rows[rank]
    assert torch.equal(hvd.allgather(none), torch.cat([rows[0], rows[2]]))
    for root in range(SIZE):
        assert torch.equal(hvd.broadcast(of(rank), root), of(root))
        tensor = of(rank).t()
        assert hvd.broadcast_(tensor, root, name=f"from {root}") is tensor and torch.equal(tensor, of(root).t())
    # Rank i gives j + 1 rows to rank j, and has six.
    mine = torch.arange(6).reshape(6, 1) + 10 * rank
    output, received = hvd.alltoall(mine, splits=torch.tensor([1, 2, 3]))
    assert received.tolist() == [rank + 1] * SIZE
    first = [0, 1, 3][rank]
    assert torch.equal(output.flatten(), torch.cat([torch.arange(first, first + rank + 1) + 10 * each for each in range(SIZE)]))
    assert torch.equal(hvd.alltoall(mine), torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 10 * each for each in range(SIZE)]).reshape(6, 1))
    whole = every((7, 2)).sum(0)
    part = hvd.reducescatter(of(rank, (7, 2)), op=hvd.Sum)
    assert torch.equal(part, whole.split([3, 2, 2])[rank])
    assert torch.allclose(hvd.reducescatter(of(rank, (7, 2))), whole.split([3, 2, 2])[rank] / SIZE)
    assert hvd.broadcast_object({"from": rank}, 2) == {"from": 2}
    assert hvd.allgather_object("x" * rank) == ["", "x", "xx"]


def gradients_flow():
    rank = hvd.rank()
    weight = of(rank, (6, 2))

    def gradient(call, shape=(6, 2)):
        given = of(rank, shape).requires_grad_()
        output = call(given)
        (output * weight[: output.shape[0]]).sum().backward()
        return given.grad

    whole = every((6, 2))
    assert torch.allclose(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum)), whole.sum(0))
    assert torch.allclose(gradient(hvd.allreduce), whole.mean(0))
    found = gradient(lambda t: hvd.broadcast(t, 1))
    assert torch.allclose(found, whole.mean(0) if rank == 1 else torch.zeros(6, 2))
    # Two rows of each rank: every rank's weights of these rows count.
    assert torch.allclose(gradient(hvd.allgather, (2, 2)), whole.sum(0)[2 * rank : 2 * rank + 2])
    assert torch.allclose(gradient(hvd.alltoall), torch.cat([whole[to][2 * rank : 2 * rank + 2] for to in range(SIZE)]))
    parts = torch.cat([whole[to][:2] for to in range(SIZE)])
    assert torch.allclose(gradient(lambda t: hvd.reducescatter(t, op=hvd.Sum)), parts)
    assert torch.allclose(gradient(hvd.reducescatter), parts / SIZE)
    half = hvd.reducescatter(weight, "a name", hvd.Compression.fp16, hvd.Sum)
    assert half.dtype == torch.float32 and torch.equal(half, whole.sum(0)[2 * rank : 2 * rank + 2])
    refused(lambda: gradient(lambda t: hvd.allreduce(t, op=hvd.Max)), "no gradient flows")


# What Horovod 0.28.1 has, in its order; what comes behind these here is not in Horovod.
SIGNATURES = {
    "init": "comm process_sets",
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async_": "tensors average name op prescale_factor postscale_factor process_set",
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
    "poll": "handle",
    "synchronize": "handle",
    "join": "device",
    "barrier": "process_set",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op gradient_predivide_factor num_groups groups sparse_as_dense "
    "process_set",
}


def arguments_in_horovods_order():
    for name, wanted in SIGNATURES.items():
        found = list(inspect.signature(getattr(hvd, name)).parameters)
        assert found[: len(wanted.split())] == wanted.split(), (name, found)
    for name, words in (("mpi_built", "there is neither MPI"), ("grouped_allgather", "call allgather for each"), ("never_heard_of", "has no attribute")):
        refused(lambda: getattr(hvd, name), name, words, error=AttributeError)


def names_meet_in_any_order():
    order = random.Random(hvd.rank())
    for _ in range(3):
        names = [f"tensor {number}" for number in range(40)]
        order.shuffle(names)
        handles = {}
        for name in names:
            handles[name] = hvd.allreduce_async(torch.full((int(name.split()[1]) + 1,), float(hvd.rank())), name=name, op=hvd.Sum)
            if order.random() < 0.2:
                time.sleep(order.random() / 1000)
        order.shuffle(names)
        for name in names:
            assert torch.equal(hvd.synchronize(handles[name]), torch.full((int(name.split()[1]) + 1,), 3.0)), name


def calls_that_differ():
    """Every rank is told both views before anything is exchanged, and the group goes on."""
    rank, own = hvd.rank(), torch.ones(3)
    for call, other, views in (
        (hvd.barrier, lambda: hvd.allgather(own), ("rank 2 calls allgather", "rank 0 calls barrier")),
        (lambda: hvd.broadcast(own, 0), lambda: hvd.reducescatter(own), ("rank 2 calls reducescatter", "rank 0 calls broadcast")),
        (lambda: hvd.allreduce(own, name="a name"), hvd.barrier, ("rank 2 calls barrier", "rank 0 waits for a name")),
    ):
        why = refused(other if rank == 2 else call, *views, error=shouter.Mismatch)
        assert (why.rank, why.theirs) == (2, views[0].removeprefix("rank 2 ")), vars(why)
        # Nothing is left of a name that was refused.
        assert torch.equal(hvd.allreduce(own, name="a name", op=hvd.Sum), SIZE * own)


def names_that_ranks_wait_for_at_different_times():
    def started(name):
        return hvd.allreduce_async(torch.ones(2), name=name, op=hvd.Sum)

    if hvd.rank() == 0:
        results = [hvd.synchronize(started(name)) for name in ("early", "middle", "late")]
    else:
        handles = [started(name) for name in ("late", "early", "middle")]
        results = [hvd.synchronize(handle) for handle in handles]
    assert all(torch.equal(result, torch.full((2,), 3.0)) for result in results)


def names_that_do_not_meet():
    rank = hvd.rank()
    why = refused(lambda: hvd.allreduce(torch.ones(1), name=f"only of {rank}"), "every rank waits", "'allreduce.only of 0' was not submitted by ranks 1, 2")
    assert "submit the same names" in str(why)
    why = refused(lambda: hvd.allreduce(torch.ones(2 + (rank == 1)), name="shape"), "'allreduce.shape'", "rank 1 has", "3 x float32", error=shouter.Mismatch)
    assert (why.rank, why.tensor) == (1, "allreduce.shape")
    refused(lambda: hvd.allreduce(torch.ones(1), name="kind", op=hvd.Max if rank == 2 else hvd.Sum), "rank 2 has", error=shouter.Mismatch)
    for count in (5, 6):
        hvd.allreduce(torch.ones(count), name="used")
    handle = hvd.allreduce_async(torch.ones(1), name="twice")
    refused(lambda: hvd.allreduce_async(torch.ones(1), name="twice"), "submitted before")
    hvd.synchronize(handle)


def a_name_that_one_rank_never_submits():
    """That rank is named at the deadline, which is the group's."""
    names = Names(shouter.world().split(0, deadline=1))
    if hvd.rank() == 2:
        time.sleep(2)
    else:
        operation = names.submit(Tensor("missing", 1), lambda: None)
        why = refused(operation.wait, "'missing'", "rank 2 neither submitted", error=shouter.Deadline)
        assert why.missing == [2], vars(why)
    hvd.barrier()


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(step, rank):
    generator = torch.Generator(device="cpu").manual_seed(1000 * step + rank)
    given, wanted = (torch.randn(4, width, generator=generator, device="cpu").to(torch.empty(0).device) for width in (6, 3))
    return given, wanted


def loss(model, step, rank):
    rows, wanted = batch(step, rank)
    return nn.functional.mse_loss(model(rows), wanted)


def one_process(steps, passes=1):
    """The parameters after training with the batches of all ranks in one process."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        total = sum(loss(model, step * passes + part, rank) for part in range(passes) for rank in range(SIZE))
        (total / SIZE).backward()
        optimizer.step()
    return list(model.parameters())


def same(model, expected, tolerance=1e-6):
    for found, wanted in zip(model.parameters(), expected):
        assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance), (found - wanted).abs().max()
    # The bits are the same on every rank.
    alike = hvd.allgather_object([parameter.detach().numpy().tobytes() for parameter in model.parameters()])
    assert all(other == alike[0] for other in alike)


def optimizers():
    rank = hvd.rank()
    for keywords, tolerance in (
        ({}, 1e-6),
        ({"gradient_predivide_factor": 2.0}, 1e-6),
        ({"compression": hvd.Compression.bf16}, 2e-2),
        ({"compression": hvd.Compression.fp16}, 2e-3),
    ):
        for named in (True, False):
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            wrapped = hvd.DistributedOptimizer(optimizer, model.named_parameters() if named else None, **keywords)
            assert isinstance(wrapped, torch.optim.SGD)
            for step in range(4):
                wrapped.zero_grad()
                loss(model, step, rank).backward()
                if step == 2:
                    wrapped.synchronize()
                    with wrapped.skip_synchronize():
                        wrapped.step()
                else:
                    wrapped.step()
            same(model, one_process(4), tolerance)


def backward_passes():
    model = net()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), backward_passes_per_step=2
    )
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            loss(model, 2 * step + part, hvd.rank()).backward()
        optimizer.step()
    same(model, one_process(3, passes=2))
    loss(model, 0, hvd.rank()).backward()
    loss(model, 0, hvd.rank()).backward()
    refused(lambda: loss(model, 0, hvd.rank()).backward(), "more than backward_passes_per_step", error=AssertionError)
    refused(optimizer.zero_grad, "zero_grad() between", error=AssertionError)
    optimizer.step()


def gradients_on_some_ranks_only():
    """They count as zeroes elsewhere."""
    model = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(SIZE)])
    for layer in model:
        nn.init.ones_(layer.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=3.0), model.named_parameters(), op=hvd.Average)
    for _ in range(2):
        # What has no gradient on one rank has none there after this either.
        optimizer.zero_grad(set_to_none=True)
        model[hvd.rank()](torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert all(torch.equal(layer.weight, torch.full((2, 2), -1.0)) for layer in model), [layer.weight for layer in model]


def optimizers_of_parts():
    """Two optimizers of one model, with the names of all of it; their gradients come mixed, and in one backward pass."""
    model = net()
    halves = [torch.optim.SGD(model[at].parameters(), lr=0.1, momentum=0.9) for at in (0, 2)]
    halves = [hvd.DistributedOptimizer(half, model.named_parameters()) for half in halves]
    for step in range(3):
        for half in halves:
            half.zero_grad()
        loss(model, step, hvd.rank()).backward()
        for half in halves:
            half.step()
    same(model, one_process(3))


def an_optimizer_that_is_replaced():
    model = net()
    hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=9.0), model.named_parameters())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
    for step in range(2):
        optimizer.zero_grad()
        loss(model, step, hvd.rank()).backward()
        optimizer.step()
    same(model, one_process(2))
    refused(lambda: optimizer.step(lambda: None), "step(closure)")
    loss(model, 0, hvd.rank()).backward()
    refused(lambda: optimizer.load_state_dict(optimizer.state_dict()), "load_state_dict() between", error=AssertionError)
    optimizer.step()


def a_scheduler_made_before():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(3):
            optimizer.zero_grad()
            loss(model, step, hvd.rank()).backward()
            optimizer.step()
            scheduler.step()
    same(model, one_process(3))


def states():
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    if hvd.rank() == 1:
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    theirs = hvd.broadcast_object((model.state_dict(), optimizer.state_dict()), 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert all(torch.equal(value, theirs[0][name]) for name, value in model.state_dict().items())
    assert str(optimizer.state_dict()) == str(theirs[1]) and optimizer.param_groups[0]["lr"] == 0.2
    hvd.broadcast_parameters(list(model.named_parameters()), root_rank=0)
    hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
    refused(lambda: hvd.broadcast_parameters({"text": "x"}, 0), "text is a str")


def sets_of_ranks():
    pair = hvd.add_process_set([2, 0])
    assert pair.process_set_id == 1 and pair.ranks == [0, 2] and pair.size() == 2 and pair.included() == (hvd.rank() != 1)
    if pair.included():
        assert pair.rank() == (0 if hvd.rank() == 0 else 1)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="in a set", process_set=pair) == 2
        model = net()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), process_set=pair)
        loss(model, 0, hvd.rank()).backward()
        optimizer.step()
        hvd.barrier(pair)
    else:
        refused(lambda: hvd.allreduce(torch.ones(1), process_set=pair), "rank 1 is not in ProcessSet([0, 2])")
    refused(lambda: hvd.add_process_set([0, 2]), "added before")
    refused(lambda: hvd.add_process_set([0, 7]), "from 0 to 2")
    refused(lambda: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0])), "is not known")
    assert hvd.remove_process_set(pair) and not hvd.remove_process_set(pair) and not hvd.remove_process_set(hvd.global_process_set)
    refused(lambda: hvd.barrier(pair), "is not known")


def arguments():
    own = torch.ones(2)
    refused(lambda: hvd.allreduce(own, op=hvd.Adasum), "Adasum is not supported")
    refused(lambda: hvd.allreduce(own, op="median"), "no reduction")
    refused(lambda: hvd.allreduce(own, average=True, op=hvd.Sum), "both op and average")
    refused(lambda: hvd.broadcast(own, 3), "ranks are 0 to 2")
    refused(lambda: hvd.allgather(torch.tensor(1.0)), "without dimensions")
    refused(lambda: hvd.alltoall(torch.ones(4)), "4 rows, which 3 ranks do not divide")
    refused(lambda: hvd.alltoall(torch.ones(4), splits=[1, 1, 1]), "splits [1, 1, 1] are not the 4 rows")
    refused(lambda: hvd.allgather(torch.ones(2, 1 + hvd.rank())), "only the first dimension may differ")
    refused(lambda: hvd.allreduce(torch.eye(2).to_sparse(), op=hvd.Max), "SUM and AVG only")
    model = net()
    named = list(model.named_parameters())

    def wrap(names, **keywords):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), names, **keywords)

    refused(lambda: wrap([("same", parameter) for _, parameter in named]), "same more than once")
    refused(lambda: wrap(named[1:]), "lacks 1 of the optimizer's 4 parameters")
    refused(lambda: wrap(named, op=hvd.Adasum), "Adasum")
    refused(lambda: wrap(named, op=hvd.Sum, gradient_predivide_factor=2.0), "op=Average only")
    refused(lambda: wrap(named, backward_passes_per_step=0), "at least 1")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        wrap(named, num_groups=2)
    assert any("num_groups=2 has no effect: the key fuse_below" in str(warning.message) for warning in given), given
    refused(lambda: hvd.init(comm=[0]), "comm=[0] is not supported; leave it out")
    largest = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named, op=hvd.Max)
    refused(hvd.join, "an optimizer reduces by max")
    del largest


def what_one_rank_refuses():
    """The others hear of it at once, and the next calls meet."""
    own, model = torch.ones(3), net()
    state = dict(model.state_dict())

    def wrap(**keywords):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **keywords)

    calls = [
        (lambda: hvd.allreduce(own, name="a name", op="median"), lambda: hvd.allreduce(own, name="a name"), "allreduce", "no reduction"),
        (lambda: hvd.allreduce(own, op="median"), lambda: hvd.allreduce(own, op=hvd.Max), "allreduce", "no reduction"),
        (lambda: hvd.allreduce(own.to_sparse(), op=hvd.Max), lambda: hvd.allreduce(own.to_sparse()), "allreduce", "only"),
        (lambda: hvd.grouped_allreduce([own, own], op="median"), lambda: hvd.grouped_allreduce([own, own]), "grouped_allreduce", "no reduction"),
        (lambda: hvd.grouped_allreduce([own, "text"]), lambda: hvd.grouped_allreduce([own, own]), "grouped_allreduce", ""),
        (lambda: hvd.grouped_allreduce_([own], True, op=hvd.Sum), lambda: hvd.grouped_allreduce_([own.clone()]), "grouped_allreduce", "both op and average"),
        (lambda: hvd.grouped_allreduce([own], name="group", op="median"), lambda: hvd.grouped_allreduce([own], name="group"), "grouped_allreduce", "no reduction"),
        (lambda: wrap(op="median"), wrap, "DistributedOptimizer", "no reduction"),
        (lambda: wrap(backward_passes_per_step=0), wrap, "DistributedOptimizer", "at least 1"),
        (lambda: hvd.broadcast_parameters(state, 3), lambda: hvd.broadcast_parameters(state, 0), "broadcast", "ranks are 0 to 2"),
        (lambda: hvd.broadcast_parameters(state | {"more": 1}, 0), lambda: hvd.broadcast_parameters(state, 0), "broadcast_parameters", "more is a int"),
        (lambda: hvd.broadcast(own, 3), lambda: hvd.broadcast(own, 0), "broadcast", "ranks are 0 to 2"),
        (lambda: hvd.allgather(torch.tensor(1.0)), lambda: hvd.allgather(own), "allgather", "without dimensions"),
        (lambda: hvd.alltoall(own, splits=[1, 1, 2]), lambda: hvd.alltoall(own), "alltoall", "are not the 3 rows"),
        (lambda: hvd.allreduce(own.to(torch.complex64), op=hvd.Max), lambda: hvd.allreduce(own, op=hvd.Max), "allreduce", "max of complex64"),
        (lambda: hvd.broadcast(own.to(torch.complex32), 0), lambda: hvd.broadcast(own, 0), "broadcast", "torch.complex32 cannot"),
        (lambda: hvd.allgather(own.to(torch.complex32)), lambda: hvd.allgather(own), "allgather", "torch.complex32 cannot"),
        (lambda: hvd.reducescatter(own.bool()), lambda: hvd.reducescatter(own), "reducescatter", "avg of bool"),
        (lambda: hvd.reducescatter(own, op="median"), lambda: hvd.reducescatter(own), "reducescatter", "no reduction"),
        (lambda: hvd.broadcast_object(1, 3), lambda: hvd.broadcast_object(1, 0), "broadcast_object", "ranks are 0 to 2"),
        (lambda: hvd.allgather_object(lambda: 1), lambda: hvd.allgather_object(1), "allgather_object", "pickle"),
    ]
    begun = time.monotonic()
    for wrong, right, name, words in calls:
        for culprit in range(SIZE):
            if hvd.rank() == culprit:
                refused(wrong, words, error=Exception)
            else:
                why = refused(right, f"rank {culprit} refuses its part in {name}; its own error says why", error=shouter.Mismatch)
                assert why.rank == culprit
            right()
            assert torch.equal(hvd.allreduce(own, op=hvd.Sum), SIZE * own)
    # Nothing waits for an all-reduce without a name: the others have started theirs.
    names = Names(shouter.world().split(0, deadline=2))
    if hvd.rank() == 1:
        refused(lambda: reduce_by(names, torch.eye(2).to_sparse(), None, None, "max", (1.0, 1.0)), "SUM and AVG only")
    else:
        refused(reduce_by(names, own, None, None, "sum", (1.0, 1.0)).wait, "rank 1 refuses its part in allreduce", error=shouter.Mismatch)
    assert time.monotonic() - begun < 20
    hvd.barrier()


def sparse_tensors():
    """Rows of one index are added; those that a rank lacks are zeros."""
    rank, rows = hvd.rank(), torch.tensor([[0, 3 + hvd.rank()]])
    own = torch.sparse_coo_tensor(rows, of(rank, (2, 3)), (9, 3))
    expected = sum(torch.sparse_coo_tensor(torch.tensor([[0, 3 + each]]), of(each, (2, 3)), (9, 3)).to_dense() for each in range(SIZE))
    assert torch.equal(hvd.allreduce(own, op=hvd.Sum).to_dense(), expected)
    assert torch.allclose(hvd.allreduce(own).to_dense(), expected / SIZE)
    assert torch.equal(hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0).to_dense(), expected * 2)
    handles = [hvd.sparse_allreduce_async(own, name=name, op=hvd.Sum) for name in (("a", "b") if rank else ("b", "a"))]
    assert all(torch.equal(handle().to_dense(), expected) for handle in handles)
    refused(lambda: hvd.allreduce(own.long(), op=hvd.Sum, prescale_factor=0.5), "a whole number")
    refused(lambda: hvd.sparse_allreduce_async(torch.tensor(1.0).to_sparse(), name="none"), "without sparse dimensions")
    into = own.clone()
    assert torch.equal(hvd.allreduce_(into, op=hvd.Sum).to_dense(), expected) and torch.equal(into.to_dense(), expected)


def sparse_gradients():
    for as_dense in (False, True):
        table = nn.Embedding(400, 2, sparse=True)
        nn.init.zeros_(table.weight)
        whole = nn.Linear(2, 1, bias=False)
        nn.init.ones_(whole.weight)
        named = [("table", table.weight), ("whole", whole.weight)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([each for _, each in named], lr=3.0), named, sparse_as_dense=as_dense)
        for step in range(2):
            # One row of all ranks, twice on each, and one of its own.
            whole(table(torch.tensor([[7, 7, 10 + hvd.rank()]]))).sum().backward()
            optimizer.synchronize()
            assert table.weight.grad.is_sparse != as_dense
            expected = torch.zeros(400, 2)
            expected[7], expected[10 : 10 + SIZE] = 2.0, 1 / SIZE
            assert torch.allclose(table.weight.grad.to_dense(), expected * whole.weight), step
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        # In a later step a rank may have none.
        looked_up = table(torch.tensor([[5]]))
        whole(looked_up if hvd.rank() else looked_up.detach()).sum().backward()
        optimizer.synchronize()
        assert table.weight.grad.is_sparse != as_dense and table.weight.grad.to_dense()[5].ne(0).all()
        with optimizer.skip_synchronize():
            optimizer.step()
        weights = hvd.allgather(table.weight.detach()[None])
        assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def a_copy_of_an_optimizer_is_refused():
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    refused(lambda: hvd.DistributedOptimizer(optimizer, model.named_parameters()), "DistributedOptimizer already")
    assert copy.deepcopy(optimizer.state_dict())["param_groups"]


def a_default_device_that_is_not_the_host():
    """What is exchanged beside the tensors themselves is in the memory of the host, wherever PyTorch makes tensors by default."""
    if not hasattr(torch, "set_default_device"):
        return "PyTorch 1.13 has no default device"
    rank = hvd.rank()
    rows, splits = of(rank, (3, 2)), torch.tensor([1, 1, 1])
    model = nn.Linear(2, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(of(rank, (3, 2))).sum().backward()
    with torch.device("meta"):
        gathered = hvd.allgather(rows)
        moved, received = hvd.alltoall(rows, splits=splits)
        assert hvd.broadcast_object({"from": rank}, 1) == {"from": 1}
        assert hvd.allgather_object(rank) == [0, 1, 2]
        optimizer.step()
    assert torch.equal(gathered, torch.cat([of(each, (3, 2)) for each in range(SIZE)])) and received.tolist() == [1, 1, 1]
    assert torch.equal(moved, torch.stack([of(each, (3, 2))[rank] for each in range(SIZE)]))


def ranks_that_run_out_of_data():
    """Those take part with zeroes, in what has names and in what has none, until the last has joined."""
    rank = hvd.rank()
    # Rank 1 is the last; rank 2 has less than rank 0.
    rounds = [2, 4, 0][rank]
    for at in range(rounds):
        left = sum(at < each for each in (2, 4, 0))
        assert torch.equal(hvd.allreduce(torch.full((5,), 3.0), name="named", op=hvd.Sum), torch.full((5,), 3.0 * left))
        # The mean is that of all ranks.
        assert torch.allclose(hvd.allreduce(torch.full((2,), 3.0)), torch.full((2,), float(left)))
        assert hvd.allreduce(torch.tensor([at + 1], dtype=torch.int64), op=hvd.Sum) == left * (at + 1)
        handles = [hvd.allreduce_async(torch.full((at + 1,), 1.0), name=name, op=hvd.Sum) for name in ("ab" if rank else "ba")]
        assert all(torch.equal(hvd.synchronize(handle), torch.full((at + 1,), float(left))) for handle in handles)
        half = torch.full((3,), 0.5, dtype=torch.bfloat16)
        assert torch.equal(hvd.allreduce(half, name="half", op=hvd.Sum), half * left)
        hvd.barrier()
    assert hvd.join() == 1
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == SIZE
    # At once, it is the highest rank.
    assert hvd.join() == SIZE - 1


def sets_while_a_rank_has_joined():
    """Those without the rank go on; all ranks of the job join."""
    pair = hvd.add_process_set([0, 2])
    refused(lambda: hvd.join(process_set=pair), "process_set=ProcessSet([0, 2]) is not supported; call join() without it")
    if pair.included():
        for at in range(3):
            assert torch.equal(hvd.allreduce(torch.full((at + 1,), 2.0), op=hvd.Sum, process_set=pair), torch.full((at + 1,), 4.0))
            assert hvd.allgather(torch.tensor([hvd.rank()]), process_set=pair).tolist() == [0, 2]
            # What a rank refuses while another has joined ends nothing.
            if hvd.rank() == 0:
                refused(lambda: hvd.allgather(torch.tensor(1.0)), "without dimensions")
            else:
                refused(lambda: hvd.allgather(torch.ones(1)), "rank 0 refuses its part in allgather", error=shouter.Mismatch)
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == 2
    hvd.join()
    assert hvd.remove_process_set(pair)


def steps_without_those_that_have_joined():
    """The last to join has made every step with the gradients that there were, over the number of all ranks."""
    for optimizers in (1, 2):
        rank, rounds = hvd.rank(), (3, 1, 2)
        model = net()
        parts = [model] if optimizers == 1 else [model[0], model[2]]
        made = [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9) for part in parts]
        made = [hvd.DistributedOptimizer(optimizer, part.named_parameters()) for optimizer, part in zip(made, parts)]
        for step in range(rounds[rank]):
            for optimizer in made:
                optimizer.zero_grad()
            loss(model, step, rank).backward()
            for optimizer in made:
                optimizer.step()
        before = [(parameter.detach().clone(), parameter.grad.clone()) for parameter in model.parameters()]
        last = hvd.join()
        assert last == 0
        for parameter, (value, gradient) in zip(model.parameters(), before):
            assert torch.equal(parameter, value) and torch.equal(parameter.grad, gradient), "join has changed something"
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        alone = net()
        reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
        for step in range(max(rounds)):
            reference.zero_grad()
            (sum(loss(alone, step, each) for each in range(SIZE) if step < rounds[each]) / SIZE).backward()
            reference.step()
        same(model, list(alone.parameters()))
        # Training goes on.
        made[0].zero_grad()
        loss(model, 0, rank).backward()
        for optimizer in made:
            optimizer.step()


def a_loss_between_the_gradients_and_the_first_step():
    """What comes between `backward` and `step`, where all others have all gradients, goes on without a rank that had no data at all."""
    model, rank = net(), hvd.rank()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(0 if rank == 1 else 2):
        optimizer.zero_grad()
        found = loss(model, step, rank)
        found.backward()
        expected = sum(loss(model, step, each).item() for each in (0, 2))
        assert abs(hvd.allreduce(found.detach(), op=hvd.Sum).item() - expected) < 1e-5
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.join())
    alone = net()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(2):
        reference.zero_grad()
        (sum(loss(alone, step, each) for each in (0, 2)) / SIZE).backward()
        reference.step()
    same(model, list(alone.parameters()))


def data_that_ends_within_a_step():
    """The backward passes of a step that a rank has not finished are not counted for its next one."""
    model, rank = net(), hvd.rank()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), backward_passes_per_step=2)
    for epoch in range(2):
        # Ranks 0 and 2 have a backward pass that belongs to no step; rank 2 makes none.
        for at in range((3, 2, 1)[rank]):
            if at % 2 == 0:
                optimizer.zero_grad()
            loss(model, 10 * epoch + at, rank).backward()
            if at % 2:
                optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.join())
    alone = net()
    reference = torch.optim.SGD(alone.parameters(), lr=0.1)
    for epoch in range(2):
        reference.zero_grad()
        (sum(loss(alone, 10 * epoch + part, each) for part in range(2) for each in (0, 1)) / SIZE).backward()
        reference.step()
    same(model, list(alone.parameters()))


def sparse_steps_without_those_that_have_joined():
    """A parameter whose gradient was sparse has no rows of a rank that has joined."""
    table = nn.Embedding(40, 2, sparse=True)
    nn.init.zeros_(table.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), op=hvd.Sum)
    for step in range(3 - hvd.rank()):
        optimizer.zero_grad()
        table(torch.tensor([[7, 10 + hvd.rank()]])).sum().backward()
        optimizer.step()
        assert torch.equal(table.weight[7], torch.full((2,), -float([3, 5, 6][step])))
    assert hvd.join() == 0


def what_is_refused_while_a_rank_has_joined():
    """By name, where it is called; the group goes on."""
    rank, own = hvd.rank(), torch.ones(3)
    if rank != 1:
        why = "rank 1 has joined; until all ranks have, only allreduce"
        pair = hvd.ProcessSet([0, 2])
        model = net()
        for call, name in (
            (lambda: hvd.allgather(own), "allgather"),
            (lambda: hvd.alltoall(own), "alltoall"),
            (lambda: hvd.reducescatter(own), "reducescatter"),
            (lambda: hvd.broadcast(own, 0), "broadcast"),
            (lambda: hvd.broadcast(own, 0, name="named"), "'broadcast.named'"),
            (lambda: hvd.allreduce(own, op=hvd.Max), "allreduce by max"),
            (lambda: hvd.allreduce(own, op=hvd.Product, name="product"), "'allreduce.product'"),
            (lambda: hvd.allreduce(own.to_sparse()), "allreduce of a sparse tensor"),
            (lambda: hvd.allreduce(own.to_sparse(), name="rows"), "'sparse_allreduce.rows'"),
            (lambda: hvd.broadcast_object(1, 0), "broadcast_object"),
            (lambda: hvd.allgather_object(1), "allgather_object"),
            (lambda: hvd.broadcast_parameters(model.state_dict(), 0), "'broadcast.0.weight'"),
            (lambda: hvd.add_process_set(pair), "add_process_set"),
            (lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0)), "DistributedOptimizer"),
        ):
            refused(call, name, why)
        refused(lambda: hvd.allreduce(own, name=f"only of {rank}"), "every rank waits", "was not submitted by rank 2")
        refused(lambda: hvd.allreduce(torch.ones(1 + rank), name="shape"), "rank 2 has", error=shouter.Mismatch)
        assert torch.equal(hvd.allreduce(own, op=hvd.Sum), 2 * own)
    assert hvd.join() == 2
    handle = hvd.allreduce_async(own, name="not waited for")
    refused(hvd.join, "'allreduce.not waited for' was submitted")
    hvd.synchronize(handle)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters() if rank != 1 else net().parameters(), lr=0.1))
    assert optimizer is not None


def a_rank_that_has_joined_waits_no_longer_than_the_deadline():
    group = shouter.world().split(0, deadline=1)
    if hvd.rank() == 2:
        time.sleep(2)
    else:
        why = refused(lambda: join(Names(group), None), "has joined", "rank 2 neither joined nor reduced", error=shouter.Deadline)
        assert why.missing == [2], vars(why)
    hvd.barrier()


CHECKS = [
    reductions_of_every_kind,
    moves,
    gradients_flow,
    arguments_in_horovods_order,
    names_meet_in_any_order,
    calls_that_differ,
    names_that_ranks_wait_for_at_different_times,
    names_that_do_not_meet,
    a_name_that_one_rank_never_submits,
    optimizers,
    backward_passes,
    gradients_on_some_ranks_only,
    optimizers_of_parts,
    an_optimizer_that_is_replaced,
    a_scheduler_made_before,
    states,
    sets_of_ranks,
    arguments,
    what_one_rank_refuses,
    sparse_tensors,
    sparse_gradients,
    a_copy_of_an_optimizer_is_refused,
    a_default_device_that_is_not_the_host,
    ranks_that_run_out_of_data,
    sets_while_a_rank_has_joined,
    steps_without_those_that_have_joined,
    a_loss_between_the_gradients_and_the_first_step,
    data_that_ends_within_a_step,
    sparse_steps_without_those_that_have_joined,
    what_is_refused_while_a_rank_has_joined,
    a_rank_that_has_joined_waits_no_longer_than_the_deadline,
]
