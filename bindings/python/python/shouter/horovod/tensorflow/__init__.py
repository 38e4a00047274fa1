"""Horovod's interface for TensorFlow 2 and Keras 3: `import shouter.horovod.tensorflow as hvd`. docs/horovod.md says what there is."""

# Says what to install where TensorFlow is missing.
from ... import tensorflow as _backend  # noqa: F401
from .._absent import OF_ALL, absent
from .._job import (
    ProcessSet,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from .._reductions import Adasum, Average, Max, Min, Product, Sum
from ._compression import Compression
from ._operations import (
    add_process_set,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    broadcast_object,
    broadcast_variables,
    grouped_allreduce,
    join,
    reducescatter,
    remove_process_set,
)
from ._training import DistributedGradientTape, DistributedOptimizer

_RANKS = "call rank(), size() and the like where the graph is made: they are constants"

ABSENT = OF_ALL | {
    "BroadcastGlobalVariablesHook": "it is for sessions; call broadcast_variables once",
    "PartialDistributedGradientTape": "there are no layers of one rank alone; use DistributedGradientTape",
    "SyncBatchNormalization": "keras.layers.BatchNormalization normalizes the batch of each rank by itself",
    "broadcast_": "call broadcast_variables",
    "broadcast_global_variables": "it is for graphs of TensorFlow 1; call broadcast_variables with the model's and the optimizer's variables",
    "broadcast_object_fn": "it is for sessions; call broadcast_object",
    "local_rank_op": _RANKS,
    "local_size_op": _RANKS,
    "process_set_included_op": _RANKS,
    "rank_op": _RANKS,
    "size_op": _RANKS,
}
"""What Horovod's module has beside these, and what to do instead."""

__getattr__ = absent(__name__, ABSENT)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
]
