"""The collectives, on every kind of tensor."""

from __future__ import annotations

import functools
import gc
import operator

import torch
import torch.distributed as dist
from backend_common import BY_DEVICE, NEW, both, everyone, of, refused, same, start, stop
from torch.distributed import ReduceOp

import shouter

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def fold(function, tensors):
    return functools.reduce(function, tensors)


def reductions():
    """Operation, types, and what comes of a list of tensors."""
    mean = lambda all: fold(operator.add, all) / len(all)
    yield ReduceOp.SUM, FLOATS + INTEGERS + COMPLEX, lambda all: fold(operator.add, all)
    yield ReduceOp.PRODUCT, FLOATS + INTEGERS, lambda all: fold(operator.mul, all)
    yield ReduceOp.MAX, FLOATS + INTEGERS, lambda all: fold(torch.maximum, all)
    yield ReduceOp.MIN, FLOATS + INTEGERS, lambda all: fold(torch.minimum, all)
    yield ReduceOp.BAND, INTEGERS, lambda all: fold(operator.and_, all)
    yield ReduceOp.BOR, INTEGERS, lambda all: fold(operator.or_, all)
    yield ReduceOp.BXOR, INTEGERS, lambda all: fold(operator.xor, all)
    yield ReduceOp.AVG, [torch.float32, torch.float64], mean
    for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR):
        yield op, [torch.bool], lambda all: fold(operator.or_, all)
    for op in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND):
        yield op, [torch.bool], lambda all: fold(operator.and_, all)
    yield ReduceOp.BXOR, [torch.bool], lambda all: fold(operator.xor, all)


def all_reduce_of_every_type():
    for op, dtypes, expected in reductions():
        for dtype in dtypes:
            tensor = of(rank(), dtype)
            dist.all_reduce(tensor, op)
            wanted = expected(everyone(dtype))
            if op == ReduceOp.AVG:
                assert torch.allclose(tensor, wanted, rtol=1e-6), (dtype, tensor, wanted)
            else:
                same(tensor, wanted, (op, dtype))


def all_reduce_started():
    tensor = of(rank())
    both(functools.partial(dist.all_reduce, tensor), lambda: tensor, lambda: tensor.copy_(of(rank())), sum(everyone()))


def all_reduce_of_many_at_once():
    tensors = [of(rank(), shape=(count,)) for count in range(1, 60)]
    for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()
    for count, tensor in enumerate(tensors, 1):
        same(tensor, sum(everyone(shape=(count,))))


def premultiplied_sum():
    if not NEW:
        return "PREMUL_SUM's factor is not told to backends by PyTorch 1.13"
    tensor = of(rank())
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, sum(everyone()) / 2)


def tensors_with_gaps():
    whole = torch.zeros(4, 6)
    part = whole[:, ::2].t()
    part.copy_(of(rank(), shape=(3, 4)))
    both(functools.partial(dist.all_reduce, part), lambda: part.contiguous(), lambda: part.copy_(of(rank(), shape=(3, 4))),
         sum(everyone(shape=(3, 4))))
    assert (whole[:, 1::2] == 0).all()
    received = torch.zeros(5, 3).t()
    received.copy_(of(rank()))
    dist.broadcast(received, 1)
    same(received.contiguous(), of(1))
    image = of(rank(), shape=(2, 3, 4, 5)).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    same(image.contiguous(), sum(everyone(shape=(2, 3, 4, 5))))
    # A tensor with a lazy negation.
    imaginary = of(rank(), torch.complex64).conj().imag
    assert imaginary.is_neg()
    outputs = [torch.empty(3, 5) for _ in range(size())]
    dist.all_gather(outputs, imaginary)
    for peer, output in enumerate(outputs):
        same(output, -of(peer, torch.complex64).imag)


def tensors_of_no_dimension_and_empty_ones():
    scalar = torch.tensor(float(rank() + 1))
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(sum(range(1, size() + 1)) * 1.0))
    dist.broadcast(scalar.fill_(rank()), 2)
    assert scalar.item() == 2
    nothing = torch.empty(0, 3)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    dist.all_gather([torch.empty(0) for _ in range(size())], torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))


def large_tensors():
    tensor = torch.full((3_000_001,), float(rank() + 1))
    dist.all_reduce(tensor)
    assert (tensor == sum(range(1, size() + 1))).all()


def broadcasts_and_reduces():
    for root in range(size()):
        tensor = of(rank())
        both(functools.partial(dist.broadcast, tensor, root), lambda: tensor, lambda: tensor.copy_(of(rank())), of(root))
        tensor = of(rank())
        dist.reduce(tensor, root)
        same(tensor, sum(everyone()) if rank() == root else of(rank()))
    if NEW:
        # Elements that are only moved may have types without a sum.
        tensor = of(rank()).to(torch.float8_e4m3fnuz)
        dist.broadcast(tensor, 1)
        same(tensor, of(1).to(torch.float8_e4m3fnuz))


def gathers_of_lists():
    for dtype in (torch.float32, torch.bool, torch.complex128, torch.int16):
        outputs = [torch.empty(3, 5).to(dtype) for _ in range(size())]
        dist.all_gather(outputs, of(rank(), dtype))
        for found, expected in zip(outputs, everyone(dtype)):
            same(found, expected)
    # Outputs in adjoining memory need no copy.
    whole = torch.zeros(size(), 3, 5)
    work = dist.all_gather(list(whole), of(rank()), async_op=True)
    work.wait()
    same(whole, torch.stack(everyone()))
    # Another size on each rank.
    outputs = [torch.empty(peer + 1) for peer in range(size())]
    dist.all_gather(outputs, of(rank(), shape=(rank() + 1,)))
    for peer, output in enumerate(outputs):
        same(output, of(peer, shape=(peer + 1,)))
    for root in range(size()):
        outputs = [torch.empty(3, 5) for _ in range(size())] if rank() == root else None
        dist.gather(of(rank()), outputs, root)
        if rank() == root:
            same(torch.stack(outputs), torch.stack(everyone()))
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(size())]
    dist.all_gather_coalesced(lists, [of(rank(), shape=(2,)), of(rank(), shape=(3,))])
    for peer, (first, second) in enumerate(lists):
        same(first, of(peer, shape=(2,)))
        same(second, of(peer, shape=(3,)))


def gathers_into_one_tensor():
    into = dist.all_gather_into_tensor
    output = torch.empty(3 * size(), 5)
    both(functools.partial(into, output, of(rank())), lambda: output, lambda: output.zero_(), torch.cat(everyone()))
    # In place, as FSDP does it.
    output = torch.zeros(size(), 4)
    output[rank()] = rank()
    into(output, output[rank()])
    same(output, torch.arange(float(size())).repeat_interleave(4).view(size(), 4))


def scatters():
    for root in range(size()):
        output = torch.empty(3, 5)
        dist.scatter(output, [of(10 + peer) for peer in range(size())] if rank() == root else None, root)
        same(output, of(10 + rank()))
    inputs = [of(10 * rank() + peer) for peer in range(size())]
    expected = sum(of(10 * peer + rank()) for peer in range(size()))
    output = torch.empty(3, 5)
    both(functools.partial(dist.reduce_scatter, output, inputs), lambda: output, lambda: output.zero_(), expected)
    dist.reduce_scatter_tensor(output.zero_(), torch.cat(inputs))
    same(output, expected)
    # In place, as FSDP does it.
    whole = torch.stack(inputs)
    dist.reduce_scatter_tensor(whole[rank()], whole)
    same(whole[rank()], expected)
    # Another size on each rank.
    output = torch.empty(rank() + 1)
    dist.reduce_scatter(output, [torch.full((peer + 1,), float(rank())) for peer in range(size())])
    assert (output == sum(range(size()))).all()


def all_to_all():
    outputs = [torch.empty(peer + rank() + 1) for peer in range(size())]
    inputs = [torch.full((peer + rank() + 1,), float(10 * rank() + peer)) for peer in range(size())]
    dist.all_to_all(outputs, inputs)
    for peer, output in enumerate(outputs):
        assert (output == 10 * peer + rank()).all()
    output = torch.empty(2 * size(), 3)
    dist.all_to_all_single(output, torch.arange(size()).repeat_interleave(2)[:, None].float().expand(-1, 3) + 10 * rank())
    same(output[:, 0], (10 * torch.arange(size()) + rank()).repeat_interleave(2).float())
    # Rank r sends p rows to rank p, as started ones.
    for dtype in (torch.float32, torch.bool):
        rows = sum(range(size()))
        output = torch.zeros(rank() * size(), 2).to(dtype)
        given = torch.full((rows, 2), rank() % 2).to(dtype)
        work = dist.all_to_all_single(output, given, [rank()] * size(), list(range(size())), async_op=True)
        work.wait()
        same(output, (torch.arange(size()) % 2).repeat_interleave(rank())[:, None].expand(-1, 2).to(dtype).contiguous())


def all_to_all_of_types_without_a_name():
    if not NEW:
        return "PyTorch 1.13 has names for all it can move"
    output = torch.empty(size(), 2).to(torch.float8_e4m3fnuz)
    dist.all_to_all_single(output, torch.full((size(), 2), rank() + 1.0).to(output.dtype))
    same(output.float()[:, 0], torch.arange(1.0, size() + 1))


def calls_together():
    tensors = [of(rank(), shape=(count,)) for count in (1, 4, 9)]
    dist.all_reduce_coalesced(tensors)
    for count, tensor in zip((1, 4, 9), tensors):
        same(tensor, sum(everyone(shape=(count,))))
    if not NEW:
        return None
    manager = dist.distributed_c10d._coalescing_manager
    tensors = [of(rank()), of(rank(), shape=(2,))]
    with manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    same(tensors[1], sum(everyone(shape=(2,))))
    outputs = [torch.empty(size(), 2), torch.empty(size(), 3)]
    with manager():
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full(output.shape[1:], float(rank())))
    same(outputs[1], torch.arange(float(size()))[:, None].expand(-1, 3).contiguous())
    outputs = [torch.empty(2), torch.empty(3)]
    with manager():
        for output in outputs:
            dist.reduce_scatter_tensor(output, torch.ones(size(), output.numel()))
    same(outputs[1], torch.full((3,), float(size())))


def barriers():
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    if BY_DEVICE:
        from datetime import timedelta

        dist.monitored_barrier(timeout=timedelta(seconds=30))


def objects():
    everything = [None] * size()
    dist.all_gather_object(everything, {"rank": rank(), "text": "x" * rank()})
    assert [one["rank"] for one in everything] == list(range(size()))
    listed = [rank(), "own"] if rank() == 1 else [None, None]
    dist.broadcast_object_list(listed, 1)
    assert listed == [1, "own"]
    gathered = [None] * size() if rank() == 0 else None
    dist.gather_object(("of", rank()), gathered, 0)
    assert rank() != 0 or gathered == [("of", peer) for peer in range(size())]
    scattered = [None]
    dist.scatter_object_list(scattered, [f"for {peer}" for peer in range(size())] if rank() == 0 else None, 0)
    assert scattered == [f"for {rank()}"]


def works_say_how_far_they_are():
    tensor = of(rank())
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    found = dist.all_reduce(tensor, async_op=True).get_future().then(lambda future: future.value()[0] + 1).wait()
    same(found, tensor + 1)


def what_is_refused():
    """Each is refused before anything is sent, and the group goes on."""
    x = torch.ones(4)
    refused(lambda: dist.all_gather([x] * size(), x.to_sparse()), "parse", error=Exception)
    refused(lambda: dist.all_reduce(x.to_sparse(), ReduceOp.MAX), "SUM and AVG only")
    refused(lambda: dist.all_reduce(x.to(torch.bool).to_sparse()), "lor of a sparse tensor")
    refused(lambda: dist.all_reduce(torch.tensor(1.0).to_sparse()), "without sparse dimensions")
    refused(lambda: dist.all_gather([x] * size(), torch.ones(4, dtype=torch.int32)), "int32", error=Exception)
    refused(lambda: dist.all_gather_into_tensor(torch.ones(5), x), error=RuntimeError)
    refused(lambda: dist.all_to_all_single(torch.ones(7), torch.ones(7)), error=RuntimeError)
    refused(lambda: dist.all_reduce(x, ReduceOp.BAND), "band", "f32", error=shouter.ArgumentError)
    refused(lambda: dist.broadcast(x, -1), "root -1", "ranks count from 0")
    refused(lambda: dist.all_reduce(x.to(torch.complex64), ReduceOp.MAX), "complex", error=Exception)
    refused(lambda: dist.scatter(x, [torch.ones(3)] * size() if rank() == 0 else None, 0), error=RuntimeError) if rank() == 0 else None
    # PyTorch 2 itself does nothing with tensors that have no data, and asks no backend.
    if not NEW:
        refused(lambda: dist.all_reduce(torch.ones(3, device="meta")), "meta tensor", error=shouter.ArgumentError)
    else:
        refused(lambda: dist.all_reduce(x.to(torch.float8_e4m3fnuz)), "float8_e4m3fnuz", error=shouter.ArgumentError)
    dist.all_reduce(x)
    same(x, torch.full((4,), float(size())))


def rows_of(peer: int, dtype: torch.dtype, repeated: bool = False) -> torch.Tensor:
    """A rank's sparse tensor of 50 rows: rows 0, 7 and some of its own; the last rank has none."""
    mine = [] if peer == size() - 1 else [7, 0, 10 + peer, 10 + 2 * peer]
    indices = torch.tensor([mine + mine[:2] if repeated else mine], dtype=torch.int64).reshape(1, -1)
    return torch.sparse_coo_tensor(indices, of(peer, dtype, (indices.shape[1], 3)), (50, 3))


def sparse_tensors():
    """Rows of one index are added, in the order of the ranks; all ranks have the same bits."""
    for dtype in [*FLOATS, torch.int64]:
        for repeated in (False, True):
            tensor = rows_of(rank(), dtype, repeated)
            dist.all_reduce(tensor)
            expected = fold(operator.add, [rows_of(peer, dtype, repeated).to_dense() for peer in range(size())])
            assert tensor.is_sparse and tensor.is_coalesced() and tensor._nnz() < 50
            same(tensor.to_dense(), expected, dtype)
    work = dist.all_reduce(first := rows_of(rank(), torch.float32), async_op=True)
    gc.collect()
    work.wait()
    found = dist.all_reduce(second := rows_of(rank(), torch.float32), async_op=True).get_future().wait()[0]
    same(first.to_dense(), second.to_dense())
    same(found.to_dense(), first.to_dense())
    # Two sparse dimensions, values that are not exact, and as many rows as in a dense tensor.
    for count in (5, 4000):
        torch.manual_seed(rank())
        flat = torch.randperm(4000)[:count]
        tensor = torch.sparse_coo_tensor(torch.stack([flat // 80, flat % 80]), torch.randn(count, 2), (50, 80, 2))
        dense = tensor.to_dense()
        dist.all_reduce(tensor)
        dist.all_reduce(dense)
        assert torch.allclose(tensor.to_dense(), dense, atol=1e-6), count
        everyones = [torch.empty_like(dense) for _ in range(size())]
        dist.all_gather(everyones, tensor.to_dense())
        for other in everyones:
            same(other, everyones[0], "ranks have other bits")
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 3), (9, 3))
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    if hasattr(ReduceOp, "AVG"):
        mean = rows_of(rank(), torch.float32)
        dist.all_reduce(mean, ReduceOp.AVG)
        assert torch.allclose(mean.to_dense(), first.to_dense() / size())
    # Another shape, or another reduction, on one rank: all are told, and the group goes on.
    if hasattr(ReduceOp, "AVG"):
        op = ReduceOp.AVG if rank() == 1 else ReduceOp.SUM
        why = refused(lambda: dist.all_reduce(rows_of(rank(), torch.float32), op), "mean of 150 elements", "sum of 150", error=shouter.Mismatch)
        assert why.reason == "diverged" and why.ours.startswith("mean" if rank() == 1 else "sum"), vars(why)
    shape = (50, 4) if rank() == 1 else (50, 3)
    values = torch.ones(1, shape[1])
    why = refused(lambda: dist.all_reduce(torch.sparse_coo_tensor(torch.tensor([[3]]), values, shape)), "shape", error=shouter.Mismatch)
    assert why.rank == (0 if rank() == 1 else 1), vars(why)


CHECKS = [
    sparse_tensors,
    all_reduce_of_every_type,
    all_reduce_started,
    all_reduce_of_many_at_once,
    premultiplied_sum,
    tensors_with_gaps,
    tensors_of_no_dimension_and_empty_ones,
    large_tensors,
    broadcasts_and_reduces,
    gathers_of_lists,
    gathers_into_one_tensor,
    scatters,
    all_to_all,
    all_to_all_of_types_without_a_name,
    calls_together,
    barriers,
    objects,
    works_say_how_far_they_are,
    what_is_refused,
]
