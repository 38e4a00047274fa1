"""Horovod's interface for PyTorch: `import shouter.horovod.torch as hvd`. docs/horovod.md says what there is."""

# Says what to install where PyTorch is missing.
from ... import torch as _backend  # noqa: F401
from .._absent import OF_ALL, absent
from .._job import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)
from .._reductions import Adasum, Average, Max, Min, Product, Sum
from ._compression import Compression
from ._functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._gradients import allgather, allreduce, alltoall, broadcast, grouped_allreduce, reducescatter
from ._operations import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    barrier,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    join,
    poll,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from ._optimizer import DistributedOptimizer

__getattr__ = absent(
    __name__,
    OF_ALL
    | {
        "SyncBatchNorm": "torch.nn.SyncBatchNorm goes over the backend shouter",
        "grouped_allgather_async": "call allgather_async for each tensor",
        "grouped_reducescatter_async": "call reducescatter_async for each tensor",
    },
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]
