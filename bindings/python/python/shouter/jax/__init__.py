"""Collectives in JAX's programs, on CPUs: inside `jit`, `grad`, `vmap` and `lax.scan`.

    import shouter
    from shouter import jax as sj

    shouter.init()
    gradients = sj.all_reduce(gradients, "avg")

Every rank runs the same collectives in the same order, with arrays of the same shapes and types. Within JAX the order is the program's.
docs/jax.md has an example of training, the derivatives, and the limits.
"""

from __future__ import annotations

import operator
from typing import Any, TypeVar

try:
    import jax as _jax
except ModuleNotFoundError as why:
    if why.name != "jax":
        raise
    raise ModuleNotFoundError("shouter.jax needs JAX; install it by `pip install jax`", name="jax") from None

from .. import _core, _group, world
from ..errors import ArgumentError
from . import _handler, _primitives

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter", "reset"]

T = TypeVar("T")


def all_reduce(x: T, op: str = "sum", *, group: _group.Group | None = None) -> T:
    """The reduction of every rank's `x`, an array or a tree of arrays, element by element; the same bits on all ranks.

    `op` is sum, avg, min, max, prod, band, bor, bxor, land, lor or lxor. The arrays of a tree are reduced at the same time.
    `sum` and `avg` have derivatives: each rank's gradient is that of the sum of all ranks' losses.
    """
    return _run(_primitives.same, "all-reduce", x, op, 0, group)


def broadcast(x: T, root: int = 0, *, group: _group.Group | None = None) -> T:
    """Rank `root`'s `x`, an array or a tree of arrays, on every rank."""
    return _run(_primitives.same, "broadcast", x, "sum", root, group)


def all_gather(x: T, *, group: _group.Group | None = None) -> T:
    """Every rank's `x`, an array or a tree of arrays: of shape `(size, *x.shape)`, in the order of ranks."""
    return _run(_primitives.gather, "all-gather", x, "sum", 0, group)


def reduce_scatter(x: T, op: str = "sum", *, group: _group.Group | None = None) -> T:
    """This rank's part of the reduction of every rank's `x`, an array or a tree of arrays: of the first axis, whose length is a multiple
    of the number of ranks, so that the shape is `(x.shape[0] // size, *x.shape[1:])`.
    """
    size = _of(group).size

    def blocks(array: Any) -> Any:
        array = _jax.numpy.asarray(array)
        if array.ndim == 0 or array.shape[0] % size:
            raise ArgumentError(f"reduce_scatter: an array of shape {array.shape} among {size} ranks; its first axis has to be a multiple of that")
        return array.reshape(size, array.shape[0] // size, *array.shape[1:])

    return _run(_primitives.scatter, "reduce-scatter", _jax.tree.map(blocks, x), op, 0, group)


def reset() -> None:
    """After a failure: programs that this thread runs from now on do not wait for those before. `shouter.init` and `shouter.abort` do the
    same; it is needed where only a group of some ranks has failed, and in other threads than that of `init`.
    """
    _primitives.reset()


def _of(group: _group.Group | None) -> _group.Group:
    if group is not None and not isinstance(group, _group.Group):
        raise ArgumentError(f"group {group!r} is none; give what shouter.init, split or group has returned")
    return group or world()


def _run(primitive: Any, kind: str, x: Any, op: str, root: int, group: _group.Group | None) -> Any:
    of = _of(group)
    if not isinstance(op, str):
        raise ArgumentError(f"{kind}: op {op!r} is no name of a reduction, such as \"sum\"")
    try:
        # A program holds it: a traced number has no value yet.
        root = operator.index(root)
    except TypeError:
        raise ArgumentError(f"{kind}: root {root!r} is no whole number; give a rank") from None
    if not 0 <= root < of.size:
        raise ArgumentError(f"{kind}: root {root} is no rank of {of.size}")
    arrays, tree = _jax.tree.flatten(x)
    if not arrays:
        return x
    arrays = [_jax.numpy.asarray(array) for array in arrays]
    reduces = kind in ("all-reduce", "reduce-scatter")
    for array in arrays:
        _core.check_type(str(array.dtype), op if reduces else None)
    _handler.register()
    # Programs of the group of all outlive it: after another `shouter.init` they go on in its group.
    number = 0 if group is None else of._core.number()
    results = primitive.bind(*arrays, kind=kind, op=op, root=root, group=number, rank=of.rank, size=of.size)
    return _jax.tree.unflatten(tree, results)
