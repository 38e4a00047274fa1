"""DistributedDataParallel, and what stands around it."""

from __future__ import annotations

import gc
import json
import os
import pickle

import torch
import torch.distributed as dist
from backend_common import NEW, same, start, stop
from torch.nn.parallel import DistributedDataParallel

from shouter.torch import hooks
from shouter.torch._groups import core_of


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.ReLU(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 3))


def batch(rank: int, step: int) -> torch.Tensor:
    torch.manual_seed(1000 * step + rank)
    return torch.randn(8, 12)


def data_parallel():
    """Several buckets, and gradients that are the mean of those of all ranks."""
    parallel = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    alone = model()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (parallel, alone)]
    for step in range(4):
        gc.collect()
        for optimizer in optimizers:
            optimizer.zero_grad()
        parallel(batch(dist.get_rank(), step)).square().mean().backward()
        buffers = [buffer.clone() for buffer in alone.buffers()]
        for rank in range(dist.get_world_size()):
            for buffer, before in zip(alone.buffers(), buffers):
                buffer.copy_(before)
            (alone(batch(rank, step)).square().mean() / dist.get_world_size()).backward()
        for one, other in zip(parallel.module.parameters(), alone.parameters()):
            assert torch.allclose(one.grad, other.grad, atol=1e-6), (one.grad, other.grad)
        for optimizer in optimizers:
            optimizer.step()
    with parallel.no_sync():
        parallel(batch(dist.get_rank(), 9)).sum().backward()
    parallel(batch(dist.get_rank(), 10)).sum().backward()
    gradients = [torch.empty(64, 12) for _ in range(dist.get_world_size())]
    dist.all_gather(gradients, parallel.module[0].weight.grad)
    same(gradients[0], gradients[1])


def another_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    parallel = DistributedDataParallel(model())
    parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    parallel(batch(dist.get_rank(), 0)).sum().backward()
    gradients = [torch.empty(3, 64) for _ in range(dist.get_world_size())]
    dist.all_gather(gradients, parallel.module[3].weight.grad)
    same(gradients[0], gradients[1])


def a_hook_that_waits_within_a_future():
    """PowerSGD starts collectives in what hangs on a future, and waits for them there."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    parallel = DistributedDataParallel(torch.nn.Linear(40, 30))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for step in range(4):
        torch.manual_seed(10 * step + dist.get_rank())
        parallel(torch.randn(4, 40)).square().mean().backward()
        gradients = [torch.empty(30, 40) for _ in range(dist.get_world_size())]
        dist.all_gather(gradients, parallel.module.weight.grad)
        same(gradients[0], gradients[1])
    assert state.iter > 2


def buckets_in_shared_memory():
    """The same gradients, and reductions fold them where they lie: those of the constructor's buckets, and of the ones that come after."""
    if not NEW:
        return "PyTorch 1.13 makes buckets where nobody can give them memory"
    if torch.empty(0).is_cuda:
        return "gradients on GPUs have no memory that the host shares"
    from shouter.torch.parallel import DistributedDataParallel as Shared

    core = core_of(None)
    for unused in (False, True):
        models = [kind(wide(), gradient_as_bucket_view=True, find_unused_parameters=unused) for kind in (Shared, DistributedDataParallel)]
        for step in range(4):
            before = core.stats()["in_place"]
            found = []
            for parallel in models:
                parallel.zero_grad()
                torch.manual_seed(10 * step + dist.get_rank())
                parallel(torch.randn(4, 700)).square().mean().backward()
                found.append(core.stats()["in_place"] - before)
            for one, other in zip(*(parallel.parameters() for parallel in models)):
                assert torch.allclose(one.grad, other.grad, atol=1e-6), step
            assert found[0] > 0 and found[1] == found[0], (step, found)
        copy = pickle.loads(pickle.dumps(models[0]))
        same(copy.module[0].weight, models[0].module[0].weight)


def wide() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(700, 1000), torch.nn.Linear(1000, 900))


def names_of_buckets():
    """Dumps say which parameters an operation is about, and gradients are those without the hook."""
    parallels = [DistributedDataParallel(model(), bucket_cap_mb=0.001) for _ in range(2)]
    parallels[0].register_comm_hook(hooks.Named(parallels[0]), hooks.named)
    for step in range(3):
        for parallel in parallels:
            parallel.zero_grad()
            parallel(batch(dist.get_rank(), step)).square().mean().backward()
        for one, other in zip(*(parallel.parameters() for parallel in parallels)):
            assert torch.allclose(one.grad, other.grad, atol=1e-6), step
    events = json.loads(core_of(None).dump().read_text())["traceEvents"]
    names = {event["args"].get("tensor") for event in events if "args" in event}
    assert any(name and name.startswith("bucket 0: 3.") for name in names), names
    assert any(name and " to " in name for name in names) and None in names, names


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), float(os.getpid())], device="cpu")


def forked_workers():
    """The workers of a DataLoader are forks of this process, and end while its group is in use."""
    seen = []
    for chunk in torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
        total = chunk[:, 0].clone()
        dist.all_reduce(total)
        same(total, chunk[:, 0] * dist.get_world_size())
        seen.extend(chunk[:, 1].tolist())
    assert len(set(seen)) == 2 and os.getpid() not in seen
    dist.barrier()


CHECKS = [data_parallel, another_hook, a_hook_that_waits_within_a_future, buckets_in_shared_memory, names_of_buckets, forked_workers]
