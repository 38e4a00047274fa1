"""Groups of ranks, and what they run."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _core
from ._core import Work

A = TypeVar("A")


class Group:
    """One rank's membership in a group: `shouter.init` makes that of all ranks, `split` and `group` make others of it.

    Every rank calls the same collectives in the same order, with as many elements of the same type, the same `op` and the same `root`.
    Arrays are NumPy's, or anything else with the buffer protocol, one element behind the other (C order); their shape does not matter,
    their number of elements does. Nothing is copied. `dtype` names the elements' type where the array does not: "bfloat16" for an
    array of uint16, say.

    What comes of a collective is in `out`, which is returned; without it in the array itself, where that is as long. Each has a form
    that only starts it (`allreduce_async`), and returns a `Work`; until that has ended nobody may touch what is written, or write what is
    read.

    Errors are those of `shouter.errors`. After `ArgumentError` the group goes on; after `Mismatch`, `PeerFailed` and `Deadline` it has ended,
    and what the arrays hold is undefined.
    """

    def __init__(self, core: _core.Group) -> None:
        self._core = core

    @property
    def rank(self) -> int:
        """This process's number in the group, from 0."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return self._core.size

    @property
    def local_rank(self) -> int:
        """This process's number among the ranks of its host, from 0."""
        return self._core.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks this host has."""
        return self._core.local_size

    @property
    def node(self) -> int:
        """This host's number in the group, from 0."""
        return self._core.node

    @property
    def nodes(self) -> int:
        """How many hosts the group has."""
        return self._core.nodes

    @property
    def closed(self) -> bool:
        """Whether this process has left the group by `close`."""
        return self._core.is_closed

    def allreduce(self, array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> A:
        """Reduces `array` element by element over all ranks, in place or into `out`, which is as long; returns where the result is.

        `op` is sum, min, max, prod or avg; for integers also band, bor, bxor; for truth values land, lor, lxor.
        """
        self._core.run("all-reduce", array, out, op, 0, dtype)
        return array if out is None else out

    def allreduce_async(self, array: Any, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
        """Starts `allreduce`."""
        return self._core.begin_run("all-reduce", array, out, op, 0, dtype, array if out is None else out)

    def barrier(self) -> None:
        """Waits until every rank has called it."""
        self._core.run("barrier")

    def barrier_async(self) -> Work:
        """Starts `barrier`."""
        return self._core.begin_run("barrier")

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Makes groups of the ranks with the same `color`, numbered by `key` and then by rank; None for a rank whose color is None. Every
        rank calls it. A group has its own order of operations and its own end."""
        made = self._core.split(color, key)
        return None if made is None else Group(made)

    def group(self, ranks: Sequence[int]) -> Group:
        """Makes a group of these ranks, numbered in this order there. Only they call it, each with the same list."""
        return Group(self._core.group(list(ranks)))

    def close(self) -> None:
        """Leaves the group together with all its other ranks: waits for this rank's operations, then for all ranks. A second call does
        nothing."""
        self._core.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._core.leave()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<shouter.Group rank {self.rank} of {self.size}{state}>"
