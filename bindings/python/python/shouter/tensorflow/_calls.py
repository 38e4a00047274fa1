"""The collectives as functions of tensors, their names, and their derivatives.

Derivatives are those of the sum of all ranks' losses.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple

import tensorflow as tf

from .. import _core, world
from .._group import Group
from ..errors import ArgumentError
from . import _kernels


class Place(NamedTuple):
    """A rank's place in a group of named operations."""

    group: int
    rank: int
    size: int


_lock = threading.Lock()
# The group of the same ranks in which a group's named operations run, and this rank's place there: their order is not that of its other calls.
_named: weakref.WeakKeyDictionary[Group, tuple[Group, Place]] = weakref.WeakKeyDictionary()


def _made(group: Group | None) -> tuple[Group, Place]:
    of = group or world()
    found = _named.get(of)
    if found is not None and not found[0].closed:
        return found
    with _lock:
        found = _named.get(of)
        if found is None or found[0].closed:
            made = of.split(0, of.rank)
            assert made is not None
            found = _named[of] = made, Place(made._core.named(), made.rank, made.size)
        return found


def named_group(group: Group | None) -> Group:
    """Where a group's named operations run; the first call of a group is one of its collectives."""
    return _made(group)[0]


def place(group: Group | None) -> Place:
    """This rank's place there."""
    return _made(group)[1]


def base(kind: str) -> str:
    """A name that is the same on every rank: of the functions that are being traced, and of the operation's place in them."""
    if tf.executing_eagerly():
        return kind
    graph = tf.compat.v1.get_default_graph()
    parts = [graph.unique_name(kind)]
    outer: Any = graph
    while outer is not None:
        # TensorFlow's names of functions have numbers that count traces, as in while_body_12_grad_34.
        parts.append(re.sub(r"_\d+(?=_|$)", "", getattr(outer, "name", None) or ""))
        outer = getattr(outer, "outer_graph", None)
    return "/".join(part for part in reversed(parts) if part)


class Naming(NamedTuple):
    """The name of an operation, and whether the trainer has given it: it is one thing then, as long as the group knows it."""

    name: str
    is_fixed: bool


@functools.cache
def _eager(kind: str) -> Naming:
    return Naming(kind, False)


def naming(name: str | None, kind: str) -> Naming:
    """The name that was given, or one that is made."""
    if name is None:
        return _eager(kind) if tf.executing_eagerly() else Naming(base(kind), False)
    if "\0" in name:
        raise ArgumentError(f"{name!r}: a name has no NUL")
    return Naming(name, True)


class arguments:
    """What is refused inside fails on the other ranks, too, which submit under this name, or the one that is made then: those of a graph when they run
    it. It stands for a function's run while one is traced, or where the other ranks run one.
    """

    __slots__ = ("_group", "_is_of_run", "_name")

    def __init__(self, group: int, name: str | Callable[[], str], *, is_of_run: bool = False) -> None:
        self._group, self._name, self._is_of_run = group, name, is_of_run

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(why, Exception):
            name = self._name if isinstance(self._name, str) else self._name()
            _core.named_refuse(self._group, name, str(why), self._is_of_run or not tf.executing_eagerly())


def bind(operation: str, x: Any, at: Place, named: Naming, *more: Any, **attributes: Any) -> tf.Tensor:
    """One operation, but an all-reduce."""
    call = getattr(_kernels.operations(), f"shouter_{operation}")
    if tf.executing_eagerly() and _kernels.has_cpus_only():
        return call(x, *more, named.name, *at, named.is_fixed, **attributes)
    with _bound(at.group, named.name):
        return call(x, *more, named.name, *at, named.is_fixed, **attributes)


def all_reduce(x: Any, group: int, named: Naming, op: str) -> tf.Tensor:
    """An all-reduce. Each frame and each attribute takes an eager call time, so it has no more of them than it needs."""
    if tf.executing_eagerly() and _kernels.has_cpus_only():
        return _kernels.operations().shouter_all_reduce(x, named.name, group, named.is_fixed, op)
    with _bound(group, named.name):
        return _kernels.operations().shouter_all_reduce(x, named.name, group, named.is_fixed, op)


@contextlib.contextmanager
def _bound(group: int, name: str) -> Iterator[None]:
    """Has an operation made for a CPU, where alone there are kernels; an eager call saves the time for that where there is nothing else. What TensorFlow
    refuses while it makes a graph is told to the others; eagerly, the kernel does that.
    """
    with tf.device("CPU"), contextlib.nullcontext() if tf.executing_eagerly() else arguments(group, name):
        yield


# Types, by TensorFlow's number, and reductions that the library has.
_checked: set[tuple[int, str | None]] = set()


def is_checked(x: Any, op: str | None) -> bool:
    """Whether it is a tensor of a type that the library is known to have, for this reduction."""
    return isinstance(x, tf.Tensor) and isinstance(op, str) and (x.dtype.as_datatype_enum, op) in _checked


def tensor_of(x: Any, op: str | None) -> tf.Tensor:
    """`x` as a tensor of a type that the library has, for this reduction."""
    tensor = x if isinstance(x, tf.Tensor) else tf.convert_to_tensor(x)
    if (tensor.dtype.as_datatype_enum, op) not in _checked:
        _core.check_type(tensor.dtype.name, op)
        _checked.add((tensor.dtype.as_datatype_enum, op))
    return tensor


def rows_name(named: Naming) -> str:
    """Under which the ranks tell each other first how many rows they have."""
    return f"{named.name}/rows"


def all_gather_rows(x: tf.Tensor, at: Place, named: Naming) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows of all ranks, and how many each has."""
    with arguments(at.group, rows_name(named)):
        own = _rows(x, named)[None]
    rows = bind("all_gather", own, at, Naming(rows_name(named), False))
    return bind("all_gather_v", x, at, Naming(named.name, False), rows), rows


def all_to_all_rows(x: tf.Tensor, splits: Any, at: Place, named: Naming) -> tuple[tf.Tensor, tf.Tensor]:
    """The rows that all ranks have for this one, and how many each has."""
    with arguments(at.group, rows_name(named)):
        given = tf.convert_to_tensor(splits, dtype_hint=tf.int64)
        if not given.dtype.is_integer or not given.shape.is_compatible_with((at.size,)):
            raise ArgumentError(
                f"'{named.name}': splits of shape {given.shape} and type {given.dtype.name}, and there are {at.size} ranks; give a number of rows for each"
            )
        given, rows = tf.ensure_shape(tf.cast(given, tf.int64), (at.size,)), _rows(x, named)
    # A rank whose splits are wrong tells the others so: all have an error at once.
    right = tf.reduce_all((given >= 0) & (given <= rows)) & (tf.reduce_sum(given) == rows)
    taken = bind("all_to_all", tf.where(right, given, -1), at, Naming(rows_name(named), False))
    return bind("all_to_all_v", x, at, Naming(named.name, False), taken, given), taken


def _rows(x: tf.Tensor, named: Naming) -> tf.Tensor:
    """Their number."""
    if x.shape.rank == 0:
        raise ArgumentError(f"'{named.name}': rows of a scalar; give it an axis")
    return tf.shape(x, tf.int64)[0]


def check_root(root: int, at: Place) -> None:
    if not 0 <= operator.index(root) < at.size:
        raise ArgumentError(f"broadcast: root {root} is no rank of {at.size}")


def _of(operation: tf.Operation) -> tuple[Place, Naming]:
    """An operation's place, and the name of the operation that is its derivative."""
    return Place(*(operation.get_attr(name) for name in Place._fields)), _of_derivative(operation)


def _of_derivative(operation: tf.Operation) -> Naming:
    # A function may have several derivatives of one operation.
    return Naming(base(operation.get_attr("tensor_name").decode() + "/gradient"), False)


def _reduction(operation: tf.Operation) -> str:
    op: str = operation.get_attr("op").decode()
    if op not in ("sum", "avg"):
        raise NotImplementedError(f"{operation.type} by {op} has no derivative here; sum and avg have one")
    return op


@tf.RegisterGradient("ShouterAllReduce")
def _of_all_reduce(operation: tf.Operation, gradient: Any) -> tf.Tensor:
    return all_reduce(gradient, operation.get_attr("group"), _of_derivative(operation), _reduction(operation))


@tf.RegisterGradient("ShouterBroadcast")
def _of_broadcast(operation: tf.Operation, gradient: Any) -> tf.Tensor:
    at, named = _of(operation)
    total = all_reduce(gradient, at.group, named, "sum")
    return total if at.rank == operation.get_attr("root") else tf.zeros_like(total)


@tf.RegisterGradient("ShouterAllGather")
def _of_all_gather(operation: tf.Operation, gradient: Any) -> tf.Tensor:
    at, named = _of(operation)
    return bind("reduce_scatter", gradient, at, named, op="sum")


@tf.RegisterGradient("ShouterReduceScatter")
def _of_reduce_scatter(operation: tf.Operation, gradient: Any) -> tf.Tensor:
    at, named = _of(operation)
    # The first ranks have one row more where the ranks do not divide them.
    all_rows = tf.shape(operation.inputs[0], tf.int64)[0]
    rows = all_rows // at.size + tf.cast(tf.range(at.size, dtype=tf.int64) < all_rows % at.size, tf.int64)
    blocks = bind("all_gather_v", gradient, at, named, rows)
    blocks.set_shape(operation.inputs[0].shape)
    return blocks if _reduction(operation) == "sum" else blocks / at.size


@tf.RegisterGradient("ShouterAllToAll")
def _of_all_to_all(operation: tf.Operation, gradient: Any) -> tf.Tensor:
    at, named = _of(operation)
    return bind("all_to_all", gradient, at, named)


@tf.RegisterGradient("ShouterAllGatherV")
def _of_all_gather_rows(operation: tf.Operation, gradient: Any) -> tuple[tf.Tensor, None]:
    at, named = _of(operation)
    rows = operation.inputs[1]
    total = all_reduce(gradient, at.group, named, "sum")
    begin = tf.reduce_sum(rows[: at.rank])
    return total[begin : begin + rows[at.rank]], None


@tf.RegisterGradient("ShouterAllToAllV")
def _of_all_to_all_rows(operation: tf.Operation, gradient: Any) -> tuple[tf.Tensor, None, None]:
    at, named = _of(operation)
    _, taken, given = operation.inputs
    return bind("all_to_all_v", gradient, at, named, given, taken), None, None
