"""Tensors on a real GPU: order with the streams of the trainer, memory of PyTorch's allocator, training. Two ranks, which may share one device."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
from backend_common import of, refused, same, start as join_job, stop
from torch.nn.parallel import DistributedDataParallel

import shouter
from shouter.torch._groups import core_of

SIMULATED = os.environ.get("LD_LIBRARY_PATH", "").endswith("cuda-sim")
NONE = "PyTorch has no CUDA device here"


def absent() -> bool:
    return SIMULATED or not torch.cuda.is_available()


def start(rank: int, size: int, store: str) -> None:
    join_job(rank, size, store)
    if not absent():
        torch.cuda.set_device(rank % torch.cuda.device_count())


def on_gpu(check):
    """A check that is skipped where there is no GPU."""

    def guarded():
        return NONE if absent() else check()

    guarded.__name__ = check.__name__
    return guarded


def rank() -> int:
    return dist.get_rank()


def others() -> list[int]:
    return list(range(dist.get_world_size()))


def slow(tensor: torch.Tensor, value: float) -> None:
    """Fills a tensor on the current stream, some milliseconds after this has returned."""
    torch.cuda._sleep(20_000_000)
    tensor.fill_(value)


@on_gpu
def sums_have_the_bits_of_sums_in_host_memory():
    """From one element to 64 MiB, for each type of floating-point numbers: by kernels, by staging, by cells."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for count in (1, 5, 4096, 70_001, 1 << 20, 16 << 20):
            torch.manual_seed(count + rank())
            on_host = torch.randn(count).to(dtype)
            on_device = on_host.cuda()
            dist.all_reduce(on_host)
            dist.all_reduce(on_device)
            same(on_device.cpu(), on_host, (dtype, count))
            both = [on_device.cpu(), torch.empty_like(on_host)]
            dist.broadcast(both[1] if rank() else both[0], 0)
            same(both[0], both[1] if rank() else both[0], "the ranks differ")


@on_gpu
def kernels_reduced_in_place():
    """Two ranks on one device fold in place where the driver opens their allocations to each other; the statistics say so."""
    before = core_of(None).stats()
    tensor = torch.ones(4 << 20, device="cuda")
    dist.all_reduce(tensor)
    after = core_of(None).stats()
    assert tensor.eq(dist.get_world_size()).all()
    grown = {name: after[name] - before[name] for name in after if isinstance(after[name], int) and after[name] != before[name]}
    assert grown.get("in_place", 0) > 0, grown


@on_gpu
def an_operation_comes_after_its_stream():
    """A tensor is read when the stream of the call has written it, in the default stream and in another."""
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        for count in (3, 100_000, 4 << 20):
            with torch.cuda.stream(stream):
                tensor, others_sum = torch.zeros(count, device="cuda"), float(sum(range(1, dist.get_world_size() + 1)))
                stream.wait_stream(torch.cuda.default_stream())
                slow(tensor, rank() + 1)
                work = dist.all_reduce(tensor, async_op=True)
                gc.collect()
                work.wait()
                assert (tensor.cpu() == others_sum).all(), (stream, count)
                slow(tensor, rank() + 1)
                dist.all_reduce(tensor)
                # Another stream may read it at once.
                with torch.cuda.stream(torch.cuda.Stream()):
                    assert (tensor == others_sum).all().item(), (stream, count)


@on_gpu
def many_operations_at_once():
    """A stream that is busy for long holds up only what is behind it; memory of freed tensors is given out again."""
    for step in range(5):
        tensors = [torch.full((1000 * (index + 1),), float(rank() + index), device="cuda") for index in range(40)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        del tensors[::2]
        garbage = [torch.full((1000 * (index + 1),), -1.0, device="cuda") for index in range(40)]
        for work in reversed(works):
            work.wait()
        for index, tensor in zip(range(1, 40, 2), tensors):
            assert (tensor == 2 * index + 1).all().item(), (step, index)
        assert all((tensor == -1).all().item() for tensor in garbage), step
        del tensors, works, garbage
        torch.cuda.empty_cache()


@on_gpu
def every_collective():
    n, me = dist.get_world_size(), rank()
    own = of(me).cuda()
    all_of = [of(each).cuda() for each in range(n)]
    outputs = [torch.empty_like(own) for _ in range(n)]
    dist.all_gather(outputs, own)
    for found, expected in zip(outputs, all_of):
        same(found, expected)
    together = torch.empty((3 * n, 5), device="cuda")
    dist.all_gather_into_tensor(together, own)
    same(together, torch.cat(all_of))
    part = torch.empty((3, 5), device="cuda")
    dist.reduce_scatter_tensor(part, torch.cat([own + each for each in range(n)]))
    same(part, sum(all_of) + n * me)
    moved = own.clone()
    dist.broadcast(moved, n - 1)
    same(moved, all_of[n - 1])
    reduced = own.clone()
    dist.reduce(reduced, 0, dist.ReduceOp.MAX)
    if me == 0:
        same(reduced, torch.stack(all_of).amax(0))
    given, taken = torch.full((n * (me + 1),), me, device="cuda"), torch.empty(n * (n + 1) // 2, dtype=torch.int64, device="cuda")
    dist.all_to_all_single(taken, given, [each + 1 for each in range(n)], [me + 1] * n)
    same(taken, torch.cat([torch.full((each + 1,), each, device="cuda") for each in range(n)]))
    gathered = [torch.empty_like(own) for _ in range(n)] if me == 0 else None
    dist.gather(own, gathered, 0)
    if gathered:
        same(torch.stack(gathered), torch.stack(all_of))
    scattered = torch.empty_like(own)
    dist.scatter(scattered, [tensor * 2 for tensor in all_of] if me == 0 else None, 0)
    same(scattered, own * 2)
    turned = of(me, shape=(5, 3)).cuda().t()
    dist.all_reduce(turned)
    same(turned, sum(of(each, shape=(5, 3)) for each in range(n)).t().cuda())
    truth = torch.tensor([me == 0, False], device="cuda")
    dist.all_reduce(truth)
    assert truth.tolist() == [True, False]
    objects: list[object] = [None] * n
    dist.all_gather_object(objects, {"rank": me})
    assert objects == [{"rank": each} for each in range(n)]


@on_gpu
def messages():
    n, me = dist.get_world_size(), rank()
    for count in (1, 5000, 3 << 20):
        sent, come = torch.empty(count, device="cuda"), torch.zeros(count, device="cuda")
        slow(sent, float(me))
        operations = [dist.P2POp(dist.irecv, come, (me - 1) % n), dist.P2POp(dist.isend, sent, (me + 1) % n)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert (come == (me - 1) % n).all().item(), count


@on_gpu
def a_gpu_and_a_cpu_in_one_operation():
    """Rank 0 has a tensor on the GPU, the others have theirs in host memory: the same bits for all."""
    for count in (7, 70_001, 2 << 20):
        torch.manual_seed(rank())
        tensor = torch.randn(count)
        expected = tensor.clone()
        dist.all_reduce(expected)
        mixed = tensor.cuda() if rank() == 0 else tensor
        core = core_of(None)
        span = (mixed.data_ptr(), mixed.nbytes)
        stream = torch.cuda.current_stream().cuda_stream if mixed.is_cuda else None
        core.start("all-reduce", *span, *span, "float32", "sum", 0, None, (None, None), mixed, stream, False).wait(30)
        same(mixed.cpu(), expected, count)


@on_gpu
def a_captured_stream_is_refused():
    graph, tensor = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        tensor.mul_(1)
        why = refused(lambda: dist.all_reduce(tensor), "captur", error=shouter.ShouterError)
    assert isinstance(why, shouter.ArgumentError), why
    dist.all_reduce(tensor)
    assert (tensor == dist.get_world_size()).all().item()


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = torch.nn.Sequential(torch.nn.Linear(700, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 900), torch.nn.ReLU(), torch.nn.Linear(900, 3))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layers(given)


def data(of_rank: int, step: int) -> torch.Tensor:
    torch.manual_seed(1000 * step + of_rank)
    return torch.randn(16, 700).cuda()


@on_gpu
def data_parallel():
    """Gradients are the mean of those of all ranks, and the same bits on each."""
    for view in (False, True):
        parallel = DistributedDataParallel(Small().cuda(), device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=view)
        alone = Small().cuda()
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (parallel, alone)]
        for step in range(6):
            for optimizer in optimizers:
                optimizer.zero_grad()
            parallel(data(rank(), step)).square().mean().backward()
            for each in others():
                (alone(data(each, step)).square().mean() / dist.get_world_size()).backward()
            for one, other in zip(parallel.module.parameters(), alone.parameters()):
                assert torch.allclose(one.grad, other.grad, rtol=1e-4, atol=1e-6), step
            for optimizer in optimizers:
                optimizer.step()
        for parameter in parallel.parameters():
            gathered = [torch.empty_like(parameter) for _ in others()]
            dist.all_gather(gathered, parameter.detach())
            same(gathered[0], gathered[1])


@on_gpu
def our_hook():
    """The hook that sends gradients as bf16."""
    from shouter.torch import hooks

    parallel = DistributedDataParallel(Small().cuda(), device_ids=[torch.cuda.current_device()])
    parallel.register_comm_hook(hooks.Bf16(), hooks.bf16)
    for step in range(3):
        parallel.zero_grad()
        parallel(data(rank(), step)).square().mean().backward()
    gradients = [torch.empty(1000, 700, device="cuda") for _ in others()]
    dist.all_gather(gradients, parallel.module.layers[0].weight.grad)
    same(gradients[0], gradients[1])


@on_gpu
def fully_sharded():
    """FSDP2: the parameters after three steps are those of one process that has all data."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    sharded, alone = Small().cuda(), Small().cuda()
    for layer in sharded.layers:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (sharded, alone)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sharded(data(rank(), step)).square().mean().backward()
        for each in others():
            (alone(data(each, step)).square().mean() / dist.get_world_size()).backward()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(sharded.parameters(), alone.parameters()):
        assert torch.allclose(one.full_tensor(), other, rtol=1e-4, atol=1e-6)


CHECKS = [
    sums_have_the_bits_of_sums_in_host_memory,
    kernels_reduced_in_place,
    an_operation_comes_after_its_stream,
    many_operations_at_once,
    every_collective,
    messages,
    a_gpu_and_a_cpu_in_one_operation,
    a_captured_stream_is_refused,
    data_parallel,
    our_hook,
    fully_sharded,
]
