"""The functions that Horovod's Keras module has in another form than its TensorFlow module."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..._job import ProcessSet, global_process_set
from ..._reductions import Average
from .. import _operations, _training
from .._compression import Compression


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: str = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """As `shouter.horovod.tensorflow.DistributedOptimizer`."""
    return _training.DistributedOptimizer(
        optimizer,
        name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


# `name` is that of the constant, as in Horovod: the ranks match these calls by the kind of operation.


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: str | None = None,
    compression: Any = Compression.none,
) -> Any:
    """The reduction of a value over all ranks: their average, unless `op` says otherwise."""
    tensor = tf.constant(value, name=name)
    return _operations.allreduce(
        tensor, average, compression=compression, op=op, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """The rows of all ranks' values, by rank; only the first dimension may differ."""
    return _operations.allgather(tf.constant(value, name=name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """A tensor with the elements of `root_rank`'s value."""
    return _operations.broadcast(tf.constant(value, name=name), root_rank)


def reducescatter(value: Any, name: str | None = None, op: str = Average) -> Any:
    """Reduces over all ranks, and gives each its rows; where the ranks do not divide them, the first ranks have one more."""
    return _operations.reducescatter(tf.constant(value, name=name), op=op)
