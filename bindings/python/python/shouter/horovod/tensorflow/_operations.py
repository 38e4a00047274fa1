"""Collectives of tensors, eager and inside `tf.function`, with derivatives. They have names, by which the ranks match theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ... import tensorflow as st
from ... import _core
from ...errors import ArgumentError, Deadline, PeerFailed
from ...tensorflow import _calls
from ...tensorflow._training import reduce_prepared, refusals as refusals_of_gradients, refusals_of_broadcast
from .. import _job
from .._absent import only_cpus, unsupported
from .._job import ProcessSet, global_process_set
from .._join import check_set, late
from .._objects import broadcast_by, gather_by
from .._reductions import Average, reduction
from ._compression import Compression


def group_of(process_set: ProcessSet) -> Any:
    return process_set._member().group


def _enter(process_set: ProcessSet, call: str, session: None = None) -> None:
    """Begins what runs beside the operations with names, and is refused where ranks have joined. A `session` is refused."""
    group, name = group_of(process_set), f"horovod/{call}"
    with _refusals(process_set, "all_gather", name):
        unsupported(call, "leave it out: sessions are TensorFlow 1's", session=session)
    try:
        with tf.init_scope():
            st.all_gather(tf.zeros((1,), tf.uint8), name=name, group=group)
    except tf.errors.InvalidArgumentError as why:
        raise ArgumentError(why.message) from None


@contextlib.contextmanager
def _refusals(process_set: ProcessSet, kind: str, name: str | None, *, is_sparse: bool = False) -> Iterator[None]:
    """What is refused inside, before a call of shouter.tensorflow, fails on the other ranks, too."""

    def submitted() -> str:
        named = _calls.naming(name, kind)
        return _calls.rows_name(named) if is_sparse else named.name

    with _calls.arguments(_calls.place(group_of(process_set)).group, submitted):
        yield


def _check_scope(call: str, name: str | None, ignore_name_scope: bool) -> None:
    if name is None:
        unsupported(call, "give a name, which has no scope", ignore_name_scope=ignore_name_scope)


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
    names: Sequence[str],
    op: str,
    scale: tuple[float, float],
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    """Reduces tensors and slices at the same time; slices are not compressed, and None stays None."""
    return reduce_prepared(tensors, names, op, group_of(process_set), _Prepared(scale, compression))


class _Prepared(NamedTuple):
    """How one of several tensors is sent, and its result made."""

    scale: tuple[float, float]
    compression: Any

    def __call__(self, tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
        before, after = self.scale
        if isinstance(tensor, tf.IndexedSlices):
            return scaled(tensor, before), lambda found: scaled(found, after)
        sent, context = self.compression.compress(scaled(tf.convert_to_tensor(tensor), before))
        return sent, lambda found: scaled(self.compression.decompress(found, context), after)


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
    ignore_name_scope: bool = False,
) -> Any:
    """The reduction of a tensor or of `tf.IndexedSlices` over all ranks: their average, unless `op` says otherwise. Slices come with each index once. The input
    is multiplied by `prescale_factor`, and the result by `postscale_factor`. Devices other than CPUs have no effect, which is a
    warning.
    """
    with _refusals(process_set, "all_reduce", name, is_sparse=isinstance(tensor, tf.IndexedSlices)):
        only_cpus("allreduce", device_dense=device_dense, device_sparse=device_sparse)
        _check_scope("allreduce", name, ignore_name_scope)
        how = reduction(op, average, "allreduce")
        sent, finish = _Prepared((prescale_factor, postscale_factor), compression)(tensor)
    return finish(st.all_reduce(sent, how, name=name, group=group_of(process_set)))


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
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """The same of several tensors, at the same time."""
    names = [name or ""] * len(tensors)
    with refusals_of_gradients(tensors, names, group_of(process_set)):
        only_cpus("grouped_allreduce", device_dense=device_dense, device_sparse=device_sparse)
        _check_scope("grouped_allreduce", name, ignore_name_scope)
        how = reduction(op, average, "grouped_allreduce")
    return reduce_all(tensors, names, how, (prescale_factor, postscale_factor), compression, process_set)


def allgather(
    tensor: Any, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """The rows of all ranks' tensors, by rank; only the first dimension may differ."""
    with _refusals(process_set, "all_gather", name, is_sparse=True):
        _check_scope("allgather", name, ignore_name_scope)
    return st.all_gather(tensor, ragged=True, name=name, group=group_of(process_set))


def broadcast(
    tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """A tensor with the elements of `root_rank`'s."""
    with _refusals(process_set, "broadcast", name):
        _check_scope("broadcast", name, ignore_name_scope)
    return st.broadcast(tensor, root_rank, name=name, group=group_of(process_set))


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives splits[i] rows to rank i, and as many to each without `splits`; returns the rows that came, by rank, and with `splits` also how many came from
    each.
    """
    with _refusals(process_set, "all_to_all", name, is_sparse=splits is not None):
        _check_scope("alltoall", name, ignore_name_scope)
    found = st.all_to_all(tensor, splits, name=name, group=group_of(process_set))
    return found if splits is None else (found[0], tf.cast(found[1], tf.int32))


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: str = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces over all ranks, and gives each its rows; where the ranks do not divide them, the first ranks have one more."""
    with _refusals(process_set, "reduce_scatter", name):
        only_cpus("reducescatter", device_dense=device_dense)
        _check_scope("reducescatter", name, ignore_name_scope)
        how = reduction(op, None, "reducescatter")
        sent, finish = _Prepared((prescale_factor, postscale_factor), compression)(tf.convert_to_tensor(tensor))
    return finish(st.reduce_scatter(sent, how, name=name, group=group_of(process_set)))


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> None:
    """Gives the variables of `root_rank`, TensorFlow's or Keras's, to all ranks. `inplace` is refused."""
    with refusals_of_broadcast(variables, group_of(process_set)):
        unsupported("broadcast_variables", "leave it out: the variables are the same afterwards", inplace=inplace)
    st.broadcast_variables(variables, root_rank, group=group_of(process_set))


def broadcast_object(obj: Any, root_rank: int = 0, session: None = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of `root_rank`, on every rank; it is pickled. Not for graphs."""
    _enter(process_set, "broadcast_object", session)
    return broadcast_by(process_set, obj, root_rank)


def allgather_object(obj: Any, session: None = None, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, by rank; they are pickled. Not for graphs."""
    _enter(process_set, "allgather_object", session)
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


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data. Until all ranks have joined, it takes part with zeroes in their all-reduces by Average or Sum, whose mean
    stays that of all ranks, so also in the steps of their tapes and optimizers. Returns the rank that joined last. Not for graphs. All ranks of the job join: other
    process sets are refused.
    """
    check_set(process_set)
    group = group_of(global_process_set)
    try:
        return _core.named_join(_calls.place(group).group)
    except (Deadline, PeerFailed) as why:
        raise late(group, why) from None
