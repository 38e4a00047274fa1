"""Collectives of tensors, eager and inside `tf.function`, with derivatives. They have names, by which the ranks match theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ... import tensorflow as st
from ... import _core
from ...errors import ArgumentError, Deadline, PeerFailed
from ...tensorflow import _calls
from .. import _job
from .._job import ProcessSet, global_process_set
from .._join import late
from .._objects import broadcast_by, gather_by
from .._reductions import Average, reduction
from ._compression import Compression


def group_of(process_set: ProcessSet) -> Any:
    return process_set._member().group


def _enter(process_set: ProcessSet, call: str) -> None:
    """Begins what runs beside the operations with names, and is refused where ranks have joined."""
    group = group_of(process_set)
    try:
        with tf.init_scope():
            st.all_gather(tf.zeros((1,), tf.uint8), name=f"horovod/{call}", group=group)
    except tf.errors.InvalidArgumentError as why:
        raise ArgumentError(why.message) from None


def scaled(x: Any, factor: float) -> Any:
    """A tensor or slices times a factor."""
    if factor == 1:
        return x
    if isinstance(x, tf.IndexedSlices):
        return tf.IndexedSlices(scaled(x.values, factor), x.indices, x.dense_shape)
    if not (x.dtype.is_floating or x.dtype.is_complex):
        raise ArgumentError(f"a factor of {factor} for a tensor of {x.dtype.name}; give one of numbers with a fraction")
    return x * tf.cast(factor, x.dtype)


def reduce_all(
    tensors: Sequence[Any],
    variables: Sequence[Any] | None,
    op: str,
    scale: tuple[float, float],
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    """Reduces tensors and slices at the same time; slices are not compressed, and None stays None."""
    sent, contexts = [], []
    for tensor in tensors:
        context = None
        if tensor is not None:
            tensor = scaled(tensor if isinstance(tensor, tf.IndexedSlices) else tf.convert_to_tensor(tensor), scale[0])
            if not isinstance(tensor, tf.IndexedSlices):
                tensor, context = compression.compress(tensor)
        sent.append(tensor)
        contexts.append(context)
    found = st.reduce_gradients(sent, variables, op, group=group_of(process_set))
    found = [each if context is None else compression.decompress(each, context) for each, context in zip(found, contexts)]
    return [None if each is None else scaled(each, scale[1]) for each in found]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The reduction of a tensor or of `tf.IndexedSlices` over all ranks: their average, unless `op` says otherwise. Slices come with each index once. The input
    is multiplied by `prescale_factor`, and the result by `postscale_factor`. Devices are not looked at: all runs on the CPU.
    """
    how = reduction(op, average, "allreduce")
    group = group_of(process_set)
    if isinstance(tensor, tf.IndexedSlices):
        return scaled(st.all_reduce(scaled(tensor, prescale_factor), how, name=name, group=group), postscale_factor)
    sent, context = compression.compress(scaled(tf.convert_to_tensor(tensor), prescale_factor))
    found = st.all_reduce(sent, how, name=name, group=group)
    return scaled(compression.decompress(found, context), postscale_factor)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """The same of several tensors, at the same time."""
    how = reduction(op, average, "grouped_allreduce")
    return reduce_all(tensors, None, how, (prescale_factor, postscale_factor), compression, process_set)


def allgather(tensor: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The rows of all ranks' tensors, by rank; only the first dimension may differ."""
    return st.all_gather(tensor, ragged=True, name=name, group=group_of(process_set))


def broadcast(tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """A tensor with the elements of `root_rank`'s."""
    return st.broadcast(tensor, root_rank, name=name, group=group_of(process_set))


def alltoall(tensor: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Gives splits[i] rows to rank i, and as many to each without `splits`; returns the rows that came, by rank, and with `splits` also how many came from
    each.
    """
    found = st.all_to_all(tensor, splits, name=name, group=group_of(process_set))
    return found if splits is None else (found[0], tf.cast(found[1], tf.int32))


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces over all ranks, and gives each its rows, of which the number of ranks has to be a divisor."""
    how = reduction(op, None, "reducescatter")
    sent, context = compression.compress(scaled(tf.convert_to_tensor(tensor), prescale_factor))
    found = st.reduce_scatter(sent, how, name=name, group=group_of(process_set))
    return scaled(compression.decompress(found, context), postscale_factor)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives the variables of `root_rank`, TensorFlow's or Keras's, to all ranks."""
    st.broadcast_variables(variables, root_rank, group=group_of(process_set))


def broadcast_object(obj: Any, root_rank: int = 0, session: None = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of `root_rank`, on every rank; it is pickled. Not for graphs."""
    _enter(process_set, "broadcast_object")
    return broadcast_by(process_set, obj, root_rank)


def allgather_object(obj: Any, session: None = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, by rank; they are pickled. Not for graphs."""
    _enter(process_set, "allgather_object")
    return gather_by(process_set, obj)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it, but for those that have joined. Not for graphs."""
    st.all_reduce(tf.zeros((1,), tf.uint8), name="horovod/barrier", group=group_of(process_set))


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set of ranks known. All ranks of the job call it with the same ranks."""
    _enter(global_process_set, "add_process_set")
    return _job.add_process_set(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set; all ranks of the job call it. False for one that is not known, and for that of all ranks."""
    _enter(global_process_set, "remove_process_set")
    return _job.remove_process_set(process_set)


def join() -> int:
    """Says that this rank has no more data. Until all ranks have joined, it takes part with zeroes in their all-reduces by Average or Sum, whose mean
    stays that of all ranks, so also in the steps of their tapes and optimizers. Returns the rank that joined last. Not for graphs.
    """
    group = group_of(global_process_set)
    try:
        return _core.named_join(_calls.place(group).group)
    except (Deadline, PeerFailed) as why:
        raise late(group, why) from None
