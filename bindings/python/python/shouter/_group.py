"""Groups of ranks, and what they run."""

from __future__ import annotations

import math
import operator
import os
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _core, _ends
from ._core import Work
from .errors import ArgumentError

if TYPE_CHECKING:
    from pathlib import Path

A = TypeVar("A")

_KINDS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
}

_all: weakref.WeakSet[Group] = weakref.WeakSet()
"""Those of this process, for its end."""


class Status(NamedTuple):
    """A message that was received."""

    source: int
    """The rank that has sent it."""
    tag: int
    """Its tag."""
    elements: int
    """Its number of elements."""


class Tensor(NamedTuple):
    """A tensor to be registered: the same on every rank, but for `given` and `taken`."""

    name: str
    """For people, and for agreement."""
    elements: int | None = None
    """Elements of the tensor, or of one rank's block; none where blocks have counts of their own."""
    dtype: str = "float32"
    """The elements' type."""
    op: str = "sum"
    """The reduction, where there is one."""
    kind: str = "allreduce"
    """The collective: the name of the method."""
    root: int = 0
    """The root, where there is one."""
    counts: Sequence[int] | None = None
    """The elements of each rank's block, of an allgather, gather, scatter or reducescatter whose blocks differ: on every
    rank, wherever the root is.
    """
    given: Sequence[int] | None = None
    """What this rank gives to each rank, of an alltoall whose blocks differ."""
    taken: Sequence[int] | None = None
    """What it takes from each rank."""


class Group:
    """One rank's membership in a group: `shouter.init` makes that of all ranks, `split` and `group` make others of
    it.

    Every rank calls the same collectives in the same order, with as many elements of the same type, the same `op`
    and the same `root`. Arrays are NumPy's, or anything else with the buffer protocol, one element behind the other
    (C order); their shape does not matter, their number of elements does. Nothing is copied. `dtype` names the
    elements' type where the array does not: "bfloat16" for an array of uint16, say.

    What comes of a collective is in `out`, which is returned; without it in the array itself, where that is as
    long. Each has a form that only starts it (`allreduce_async`), and returns a `Work`; until that has ended nobody
    may touch what is written, or write what is read.

    Errors are those of `shouter.errors`. After `ArgumentError` the group goes on; after `Mismatch`, `PeerFailed`
    and `Deadline` it has ended, and what the arrays hold is undefined.
    """

    def __init__(self, core: _core.Group) -> None:
        self._core = core
        _all.add(self)

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
        """Reduces `array` element by element over all ranks, in place or into `out`, which is as long; returns
        where the result is.

        `op` is sum, min, max, prod or avg; for integers also band, bor, bxor; for truth values land, lor, lxor.
        """
        self._core.run("all-reduce", array, out, op, 0, dtype)
        return array if out is None else out

    def allreduce_async(self, array: Any, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
        """Starts `allreduce`."""
        return self._core.begin_run("all-reduce", array, out, op, 0, dtype, result=array if out is None else out)

    def broadcast(self, array: A, root: int = 0, *, dtype: str | None = None) -> Any:
        """Gives the elements of `array` of rank `root` to all ranks, in place; returns `array`, which is as long
        everywhere. As in every collective, a rank that has its result, or takes none, may return before the others
        have called it; where one of those calls something else then, that is the error of one of its next calls.
        """
        self._core.run("broadcast", None, array, "sum", root, dtype)
        return array

    def broadcast_async(self, array: A, root: int = 0, *, dtype: str | None = None) -> Work:
        """Starts `broadcast`."""
        return self._core.begin_run("broadcast", None, array, "sum", root, dtype, result=array)

    def reduce(self, array: Any, op: str = "sum", root: int = 0, *, out: Any = None, dtype: str | None = None) -> Any:
        """As `allreduce`, with the result on rank `root` only: in place, or in its `out`. What the others have as
        `array` stays as it is, and their `out` is not looked at. Returns where the result is, None on the others.
        """
        self._core.run("reduce", array, out if self.rank == root else None, op, root, dtype)
        return (array if out is None else out) if self.rank == root else None

    def reduce_async(
        self, array: Any, op: str = "sum", root: int = 0, *, out: Any = None, dtype: str | None = None
    ) -> Work:
        """Starts `reduce`."""
        return self._core.begin_run(
            "reduce",
            array,
            out if self.rank == root else None,
            op,
            root,
            dtype,
            result=(array if out is None else out) if self.rank == root else None,
        )

    def allgather(self, array: Any, out: Any, *, counts: Sequence[int] | None = None, dtype: str | None = None) -> Any:
        """Puts the elements of all ranks into `out`, by rank: a block for each rank. `array` is None where this
        rank's block is in its place there.

        With `counts`, ranks give different numbers of elements: rank i gives counts[i], the same list on all ranks. Its
        block lies behind those of the ranks before it.
        """
        kind = "all-gather" if counts is None else "all-gather-v"
        self._core.run(kind, array, out, "sum", 0, dtype, (None, counts))
        return out

    def allgather_async(
        self, array: Any, out: Any, *, counts: Sequence[int] | None = None, dtype: str | None = None
    ) -> Work:
        """Starts `allgather`."""
        kind = "all-gather" if counts is None else "all-gather-v"
        return self._core.begin_run(kind, array, out, "sum", 0, dtype, (None, counts), out)

    def gather(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """As `allgather`, with the blocks in `out` on rank `root` only; `counts` need be given only there, as a
        list, and as an empty one on the others. Returns `out`.
        """
        kind = "gather" if counts is None else "gather-v"
        self._core.run(kind, array, out if self.rank == root else None, "sum", root, dtype, (None, counts))
        return out

    def gather_async(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Work:
        """Starts `gather`."""
        kind = "gather" if counts is None else "gather-v"
        return self._core.begin_run(
            kind, array, out if self.rank == root else None, "sum", root, dtype, (None, counts), out
        )

    def scatter(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Gives each rank its block of `array` of rank `root`, into `out`. The others' `array` is not looked at. On
        the root `out` may be None: its block stays where it is. With `counts`, on the root a list (on the others an
        empty one), rank i gets counts[i] elements. Returns `out`.
        """
        kind = "scatter" if counts is None else "scatter-v"
        self._core.run(kind, array if self.rank == root else None, out, "sum", root, dtype, (counts, None))
        return out

    def scatter_async(
        self,
        array: Any,
        out: Any = None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Work:
        """Starts `scatter`."""
        kind = "scatter" if counts is None else "scatter-v"
        return self._core.begin_run(
            kind, array if self.rank == root else None, out, "sum", root, dtype, (counts, None), out
        )

    def reducescatter(
        self,
        array: Any,
        out: Any = None,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Reduces `array`, which has a block for each rank, over all ranks, and gives each rank its block of the
        result in `out`; without that, in its block of `array`. With `counts`, the same list on all ranks, rank i
        has counts[i] elements, and its block lies behind those of the ranks before it. Returns where the result is.
        """
        kind = "reduce-scatter" if counts is None else "reduce-scatter-v"
        self._core.run(kind, array, out, op, 0, dtype, (counts, None))
        return array if out is None else out

    def reducescatter_async(
        self,
        array: Any,
        out: Any = None,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Work:
        """Starts `reducescatter`."""
        kind = "reduce-scatter" if counts is None else "reduce-scatter-v"
        return self._core.begin_run(kind, array, out, op, 0, dtype, (counts, None), array if out is None else out)

    def alltoall(
        self,
        array: Any,
        out: Any = None,
        *,
        given: Sequence[int] | None = None,
        taken: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Any:
        """Gives each rank its block of `array`, and puts what comes from each into `out` by rank, or into `array`
        itself. With `given` and `taken`, given[i] elements go to rank i, and taken[i] come from it. Returns where
        the result is.
        """
        kind = "all-to-all" if given is None and taken is None else "all-to-all-v"
        self._core.run(kind, array, out, "sum", 0, dtype, (given, taken))
        return array if out is None else out

    def alltoall_async(
        self,
        array: Any,
        out: Any = None,
        *,
        given: Sequence[int] | None = None,
        taken: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Work:
        """Starts `alltoall`."""
        kind = "all-to-all" if given is None and taken is None else "all-to-all-v"
        return self._core.begin_run(kind, array, out, "sum", 0, dtype, (given, taken), array if out is None else out)

    def scan(self, array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Any:
        """Reduces over the ranks up to this one, in rank order, in place or into `out`; returns where the result
        is.
        """
        self._core.run("scan", array, out, op, 0, dtype)
        return array if out is None else out

    def scan_async(self, array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
        """Starts `scan`."""
        return self._core.begin_run("scan", array, out, op, 0, dtype, result=array if out is None else out)

    def exscan(self, array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Any:
        """As `scan`, over the ranks before this one. On rank 0, which has none, nothing is written."""
        self._core.run("exscan", array, out, op, 0, dtype)
        return array if out is None else out

    def exscan_async(self, array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
        """Starts `exscan`."""
        return self._core.begin_run("exscan", array, out, op, 0, dtype, result=array if out is None else out)

    def barrier(self) -> None:
        """Waits until every rank has called it."""
        self._core.run("barrier")

    def barrier_async(self) -> Work:
        """Starts `barrier`."""
        return self._core.begin_run("barrier")

    def send(self, array: Any, to: int, tag: int = 0, *, synchronous: bool = False, dtype: str | None = None) -> None:
        """Sends the elements of `array` to rank `to`, and returns when it may be changed: a small message may still
        be on its way then. `synchronous` returns when the receiver has it. `tag` is 0 to 2**32 - 1.
        """
        self._core.block(self._core.send(array, to, tag, dtype, synchronous))

    def send_async(
        self, array: Any, to: int, tag: int = 0, *, synchronous: bool = False, dtype: str | None = None
    ) -> Work:
        """Starts `send`."""
        return self._core.send(array, to, tag, dtype, synchronous)

    def recv(
        self, array: Any, source: int | None = None, tag: int | None = None, *, dtype: str | None = None
    ) -> Status:
        """Receives the first message from rank `source` (None: any) with this `tag` (None: any) into `array`, which
        may be longer.
        """
        status: Status = self._core.block(self._core.recv(array, source, tag, dtype))
        return status

    def recv_async(
        self, array: Any, source: int | None = None, tag: int | None = None, *, dtype: str | None = None
    ) -> Work:
        """Starts `recv`."""
        return self._core.recv(array, source, tag, dtype)

    def sendrecv(
        self,
        array: Any,
        to: int,
        out: Any,
        source: int | None = None,
        tag: int = 0,
        *,
        receive_tag: int | None = None,
        dtype: str | None = None,
    ) -> Status:
        """Sends `array` to rank `to` and receives into `out` at once, so that ranks which send to each other do not
        wait for ever.
        """
        status: Status = self._core.block(self._core.sendrecv(array, to, out, source, tag, receive_tag, dtype))
        return status

    def sendrecv_async(
        self,
        array: Any,
        to: int,
        out: Any,
        source: int | None = None,
        tag: int = 0,
        *,
        receive_tag: int | None = None,
        dtype: str | None = None,
    ) -> Work:
        """Starts `sendrecv`."""
        return self._core.sendrecv(array, to, out, source, tag, receive_tag, dtype)

    def register(self, tensors: Iterable[Tensor]) -> list[int]:
        """Agrees with all ranks on the tensors of each step, in this order, which is their priority, and returns a
        number for each. Every rank calls it with the same tensors. `Mismatch` names the first that differs, or the
        ranks of which one gives another number of elements than the other takes: nothing is registered then, and the
        group goes on. After `Deadline` the group of all ranks registers nothing more. No push exchanges counts.
        """
        return self._core.register([
            (t.name, _KINDS.get(t.kind, t.kind), t.elements, t.dtype, t.op, t.root, (t.counts, t.given, t.taken))
            for t in tensors
        ])

    def push(self, tensor: int, array: Any, *, out: Any = None) -> Work:
        """Starts the operation of a registered tensor on `array`, in place or into `out`, as the method of its kind takes
        them: a broadcast is in place, an allgather has an `out`.
        """
        return self._core.push(tensor, array, out, array if out is None else out)

    def set_step(self, step: int) -> None:
        """Says which step of the training follows, for errors and timelines."""
        self._core.set_step(step)

    def set_label(self, label: str) -> None:
        """Names the operations that follow, of arrays that are not registered, in timelines and dumps; "" is none."""
        self._core.set_label(label)

    def empty(self, shape: int | Sequence[int], dtype: Any = "float32") -> Any:
        """A NumPy array of zeroes in memory that the ranks of the host share: collectives on such arrays copy
        least. Without NumPy it is a memoryview of bytes, and `shape` their number.
        """
        given: Any = shape
        try:
            lengths = [operator.index(given)]
        except TypeError:
            lengths = [operator.index(length) for length in given]
        if any(length < 0 for length in lengths):
            raise ArgumentError(f"an array of shape {tuple(lengths)}; lengths are 0 or more")
        try:
            import numpy
        except ImportError:
            if dtype not in ("uint8", "u8"):
                raise
            return memoryview(self._core.alloc(math.prod(lengths)))
        kind = numpy.dtype(dtype)
        memory: Any = self._core.alloc(math.prod(lengths) * kind.itemsize)
        return numpy.frombuffer(memory, numpy.uint8).view(kind).reshape(lengths)

    def stats(self) -> dict[str, int]:
        """This rank's counters: operations, bytes, frames, retransmissions."""
        return self._core.stats()

    def transport(self) -> str:
        """The channels that carry the data, and the reasons for the choice."""
        return self._core.transport()

    def job_rank(self, rank: int) -> int:
        """The number that rank `rank` of this group has in the job."""
        return self._core.job_rank(rank)

    def dump(self) -> Path:
        """Writes the last events of this rank to a new file, which https://ui.perfetto.dev opens, and returns its
        path.
        """
        return self._core.dump()

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes what this rank did as a trace to `path`. Needs SHOUTER_TIMELINE or `init(timeline=...)`."""
        self._core.write_timeline(os.fspath(path))

    def abort(self, text: str | None = None) -> None:
        """Leaves the group without waiting for anybody: operations under way here end with `Closed`, and on the
        other ranks with `PeerFailed`, which names this rank. With a `text` the job ends for all its ranks, and the
        errors of the others have the text, of which 1,024 bytes are kept.
        """
        if text is None:
            self._core.leave()
        else:
            self._core.abort(text)

    def split(self, color: int | None, key: int = 0, *, deadline: float | None = None) -> Group | None:
        """Makes groups of the ranks with the same `color`, numbered by `key` and then by rank; None for a rank
        whose color is None. Every rank calls it. A group has its own order of operations and its own end.
        `deadline` is how long each of its operations may take, in seconds; without it, as here.
        """
        made = self._core.split(color, key, deadline)
        return None if made is None else Group(made)

    def group(self, ranks: Sequence[int], *, deadline: float | None = None) -> Group:
        """Makes a group of these ranks, numbered in this order there. Only they call it, each with the same list.
        `deadline` is how long each of its operations may take, in seconds; without it, as here.
        """
        return Group(self._core.group(list(ranks), deadline))

    def close(self) -> None:
        """Leaves the group together with all its other ranks: waits for this rank's operations, then for all ranks.
        A `recv` of another thread is under way until its message has come, which another rank may still send, or the key
        `deadline` has passed; `shouter.abort` in place of `close` ends it at once. A second call does nothing. It
        waits for the callbacks of operations, and raises `ArgumentError` in one.
        """
        self._core.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif _ends.is_job(self._core):
            self._core.abort(_ends.words(kind, error))
        else:
            self._core.leave()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<shouter.Group rank {self.rank} of {self.size}{state}>"
