"""Collectives in TensorFlow's programs, on CPUs: eager, inside `tf.function`, and under Keras 3.

    import shouter
    import shouter.tensorflow as st

    shouter.init()
    optimizer = st.DistributedOptimizer(keras.optimizers.SGD(0.1))

Every operation has a name, by which the ranks match theirs: TensorFlow may run the operations of a graph in another order on each rank.
docs/tensorflow.md has an example of training, the derivatives, and the limits.
"""

from __future__ import annotations

from typing import Any

try:
    import tensorflow as _tf
except ModuleNotFoundError as why:
    if why.name != "tensorflow":
        raise
    raise ModuleNotFoundError(
        "shouter.tensorflow needs TensorFlow; install it by `pip install tensorflow-cpu==2.21.0`", name="tensorflow"
    ) from None

from .._group import Group
from . import _calls, _sparse
from ._callbacks import BroadcastGlobalVariables, MetricAverage
from ._training import DistributedGradientTape, DistributedOptimizer, broadcast_variables, reduce_gradients

__all__ = [
    "BroadcastGlobalVariables",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "MetricAverage",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "broadcast_variables",
    "reduce_gradients",
    "reduce_scatter",
    "stats",
]


def all_reduce(x: Any, op: str = "sum", *, name: str | None = None, group: Group | None = None) -> Any:
    """The reduction of every rank's `x`, element by element; the same bits on all ranks.

    `op` is sum, avg, min, max, prod, band, bor, bxor, land, lor or lxor. Of `tf.IndexedSlices` there are sum and avg: each index is there once, in
    ascending order. `sum` and `avg` have derivatives: each rank's gradient is that of the sum of all ranks' losses.
    """
    at, named = _calls.place(group), _calls.naming(name, "all_reduce")
    if not _calls.is_checked(x, op):
        if isinstance(x, _tf.IndexedSlices):
            return _sparse.all_reduce(x, op, at, named)
        with _calls.arguments(at.group, named.name):
            x = _calls.tensor_of(x, op)
    return _calls.all_reduce(x, at.group, named, op)


def broadcast(x: Any, root: int = 0, *, name: str | None = None, group: Group | None = None) -> Any:
    """Rank `root`'s `x` on every rank; all have one shape."""
    at, named = _calls.place(group), _calls.naming(name, "broadcast")
    with _calls.arguments(at.group, named.name):
        _calls.check_root(root, at)
        tensor = _calls.tensor_of(x, None)
    return _calls.bind("broadcast", tensor, at, named, root=root)


def all_gather(x: Any, *, ragged: bool = False, name: str | None = None, group: Group | None = None) -> Any:
    """Every rank's `x`, one behind the other along the first axis, in the order of ranks. With `ragged`, the first axes may have different
    lengths, which the ranks tell each other first.
    """
    at, named = _calls.place(group), _calls.naming(name, "all_gather")
    with _calls.arguments(at.group, _calls.rows_name(named) if ragged else named.name):
        tensor = _calls.tensor_of(x, None)
    if ragged:
        return _calls.all_gather_rows(tensor, at, named)[0]
    return _calls.bind("all_gather", tensor, at, named)


def reduce_scatter(x: Any, op: str = "sum", *, name: str | None = None, group: Group | None = None) -> Any:
    """This rank's part of the reduction of every rank's `x`: of the first axis, so that the shape is `(x.shape[0] // size, *x.shape[1:])`; where the
    ranks do not divide its length, the first ranks have one row more.
    """
    at, named = _calls.place(group), _calls.naming(name, "reduce_scatter")
    with _calls.arguments(at.group, named.name):
        tensor = _calls.tensor_of(x, op)
    return _calls.bind("reduce_scatter", tensor, at, named, op=op)


def all_to_all(x: Any, splits: Any = None, *, name: str | None = None, group: Group | None = None) -> Any:
    """Block i of every rank's `x` on rank i, one behind the other in the order of ranks: of the first axis, whose length is a multiple of the
    number of ranks. With `splits`, splits[i] rows go to rank i, and what is returned is a pair: the rows that came, and how many from each rank.
    """
    at, named = _calls.place(group), _calls.naming(name, "all_to_all")
    with _calls.arguments(at.group, named.name if splits is None else _calls.rows_name(named)):
        tensor = _calls.tensor_of(x, None)
    if splits is not None:
        return _calls.all_to_all_rows(tensor, splits, at, named)
    return _calls.bind("all_to_all", tensor, at, named)


def stats(*, group: Group | None = None) -> dict[str, int]:
    """This rank's counters of these operations, those by which the ranks agree on them included: see `shouter.stats`."""
    return _calls.named_group(group).stats()
