"""Checks of sharded training and of what stands on DeviceMesh: on torch 2.x only."""
import os
import warnings

import torch
import torch._dynamo  # optimizers import it at their first step: here it is once for all ranks
import torch._dynamo.backends.debugging
import torch._inductor.compile_fx
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed import _functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp import batch, loss_of, model, outcome, train

# The compiler behind torch.compile: `inductor` generates C++, which takes longer than all other checks.
COMPILER = os.environ.get("TRAINERS_COMPILER", "aot_eager")


def full(net):
    """Whole parameters, gathered from their shards."""
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in net.named_parameters()}


def steps_of(net, own, steps=3, data=None):
    """Trains with Adam; `data` is the rank that the batches are of. A large eps: else Adam magnifies how sums were rounded."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, eps=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(net, own if data is None else data, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return optimizer, losses


def sharded(mesh):
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def fsdp2(own):
    net = sharded(init_device_mesh("cpu", (own.size,)))
    _, losses = steps_of(net, own)
    return {**full(net), "losses": torch.tensor(losses)}


def fsdp2_hybrid(own):
    """Shards within two ranks, replicas between the two pairs."""
    net = sharded(init_device_mesh("cpu", (2, own.size // 2), mesh_dim_names=("replicas", "shards")))
    _, losses = steps_of(net, own)
    return {**full(net), "losses": torch.tensor(losses)}


def fsdp1(own):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
        optimizer, losses = steps_of(net, own)
        with FullyShardedDataParallel.summon_full_params(net):
            found = {name: value.detach().clone() for name, value in net.named_parameters()}
    return {**found, "losses": torch.tensor(losses)}


def dtensor(own):
    mesh = init_device_mesh("cpu", (own.size,))
    whole = torch.arange(own.size * 6 * 5, dtype=torch.float32).reshape(own.size * 6, 5).sin()
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = rows.t() @ rows  # each rank has a part of the sum
    assert isinstance(product.placements[0], Partial), product.placements
    everywhere = columns.redistribute(mesh, [Replicate()])
    assert torch.equal(everywhere.to_local(), whole)
    uneven = distribute_tensor(torch.arange(own.size * 3 + 1.0), mesh, [Shard(0)])
    return {
        "columns": columns.to_local(), "product": product.full_tensor(), "rows of it": product.redistribute(mesh, [Shard(0)]).to_local(),
        "uneven": uneven.full_tensor(),
    }


def functional(own):
    """The collectives that DTensor and compiled code call, which return tensors and wait when those are used."""
    group = dist.group.WORLD
    own.seed()
    given = torch.randn(own.size * 3, 4)
    # The variables keep them alive until all have ended: with temporaries a rank of Gloo's ended in a segmentation
    # fault here once.
    twice, more = given * 2, given + 1
    found = {
        "all_reduce": funcol.all_reduce(given, "sum", group),
        "maximum": funcol.all_reduce(given, "max", group),
        "all_gather": funcol.all_gather_tensor(given, 0, group),
        "columns gathered": funcol.all_gather_tensor(given, 1, group),
        "reduce_scatter": funcol.reduce_scatter_tensor(given, "sum", 0, group),
        "broadcast": funcol.broadcast(given, own.size - 1, group),
        "all_to_all": funcol.all_to_all_single(given, None, None, group),
        "uneven": funcol.all_to_all_single(
            given[: sum(range(own.size))], [(own.rank + peer) % own.size for peer in range(own.size)],
            [(own.rank + peer) % own.size for peer in range(own.size)], group),
    }
    both = funcol.all_reduce_coalesced([given, twice], "sum", group)
    found.update({"coalesced 0": both[0], "coalesced 1": both[1]})
    parts = funcol.all_gather_into_tensor_coalesced([given, more], group)
    found.update({"gathered 0": parts[0], "gathered 1": parts[1]})
    parts = funcol.reduce_scatter_tensor_coalesced([given, more], "sum", [0, 0], group)
    found.update({"scattered 0": parts[0], "scattered 1": parts[1]})
    asked = given.clone().requires_grad_()
    (funcol.all_gather_tensor_autograd(asked, 0, group) * torch.arange(own.size * own.size * 3.0)[:, None]).sum().backward()
    found["gradient of all_gather"] = asked.grad
    return {name: value.wait() if hasattr(value, "wait") else value for name, value in found.items()}


class Pair(nn.Module):
    """Two layers, split by columns and by rows: one all-reduce for both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 5)

    def forward(self, rows):
        return self.down(torch.relu(self.up(rows)))


def mesh_two_by_two(own):
    """Tensor parallelism within two ranks, fully_shard between the two pairs."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = parallelize_module(Pair(), mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])

    class Data:
        rank = mesh["data"].get_local_rank()

    _, losses = steps_of(net, own, data=Data)
    return {**full(net), "losses": torch.tensor(losses)}


def tensor_parallel(own):
    mesh = init_device_mesh("cpu", (own.size,))
    net = parallelize_module(Pair(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    class Data:
        rank = 0

    _, losses = steps_of(net, own, data=Data)
    return {**full(net), "losses": torch.tensor(losses)}


def checkpoint(own):
    """What is saved from shards is what a fresh model loads, and both go on alike."""
    mesh = init_device_mesh("cpu", (own.size,))
    net = sharded(mesh)
    steps_of(net, own)
    where = os.path.join(own.folder, "checkpoint")
    dcp.save({"model": net.state_dict()}, checkpoint_id=where)
    fresh = sharded(mesh)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    state = {"model": fresh.state_dict()}
    dcp.load(state, checkpoint_id=where)
    fresh.load_state_dict(state["model"])
    for (name, one), other in zip(full(net).items(), full(fresh).values()):
        assert torch.equal(one, other), name
    _, losses = steps_of(fresh, own)
    return {**full(fresh), "losses": torch.tensor(losses)}


def autograd_forms(own):
    """torch.distributed.nn: collectives with a gradient."""
    import torch.distributed.nn.functional as forms

    found = {}

    def both(name, collective, *shape):
        own.seed(3)
        given = torch.randn(*shape, requires_grad=True)
        result = collective(given)
        parts = result if isinstance(result, (list, tuple)) else [result]
        sum((part * (index + 1 + own.rank)).sin().sum() for index, part in enumerate(parts)).backward()
        if name != "reduce" or own.rank == 0:  # what the other ranks then have is not defined
            found.update({f"{name} {index}": part for index, part in enumerate(parts)})
        found[f"gradient of {name}"] = given.grad

    n = own.size
    both("all_reduce", lambda x: forms.all_reduce(x.clone()), 5)
    both("all_gather", forms.all_gather, 5)
    both("broadcast", lambda x: forms.broadcast(x.clone(), 1), 5)
    both("reduce", lambda x: forms.reduce(x.clone(), 0), 5)
    both("all_to_all_single", lambda x: forms.all_to_all_single(torch.empty_like(x), x), n, 3)
    both("gather", lambda x: forms.gather(x, 0), 5)
    both("scatter", lambda x: forms.scatter(list(x.unbind()), 0), n, 3)
    return found


class Layers(nn.Module):
    """The model with a forward pass of its own: torch.compile does not look into nn.Sequential's."""

    def __init__(self):
        super().__init__()
        self.layers = model()

    def forward(self, rows):
        for layer in self.layers:
            rows = layer(rows)
        return rows


def compiled(own):
    """torch.compile of a DDP model splits the graph where buckets end."""
    torch._dynamo.reset()
    first, dist._DEFAULT_FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES, 1000
    graphs, compiler = [], torch._dynamo.lookup_backend(COMPILER)

    def count(graph, inputs):
        graphs.append(graph)
        return compiler(graph, inputs)

    net = DDP(Layers(), bucket_cap_mb=0.002)
    quick = torch.compile(net, backend=count)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        rows, digits = batch(own, step)
        loss = nn.functional.cross_entropy(quick(rows), digits)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist._DEFAULT_FIRST_BUCKET_BYTES = first
    assert len(graphs) > 1, f"{len(graphs)} graphs were compiled"
    return outcome(net, losses)


CHECKS = [
    fsdp2, fsdp2_hybrid, fsdp1, dtensor, functional, tensor_parallel, mesh_two_by_two, checkpoint, autograd_forms, compiled,
]
