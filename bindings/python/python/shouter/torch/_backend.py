"""What PyTorch asks of a backend, for all its versions: each call becomes operations of the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import torch

from .. import _core
from ..errors import ArgumentError, ShouterError, Timeout
from . import _groups
from ._tensors import (
    DTYPES,
    STRIDED,
    SUM,
    SUMMED,
    VERSION,
    Block,
    bytes_of,
    check,
    copy_back,
    name_of,
    plain,
    readable,
    reduction,
    same_device,
    stream_of,
    writable,
)
from ._sparse import Reduction
from ._work import DONE, Deadline, Flight, Handle, Mismatch, Work, raised

# The first tag of the backend's own messages: PyTorch's tags are below.
FIRST_TAG = 1 << 31

# Older versions wait by the handle of each call; 2.7 does, and 2.11 does not need one.
_TAKES_NONE = VERSION >= (2, 11)

Tensors = Sequence[torch.Tensor]
Lists = Sequence[Sequence[torch.Tensor]]

# A collective that was started: its handle, the tensors with its result, and what is left to do when it has ended.
Started = tuple[Handle, list[torch.Tensor], Callable[[], None] | None]


class Operations:
    """One group's calls. `core` is the library's group."""

    def _open(self, core: _core.Group, timeout: timedelta) -> None:
        self.core = core
        self._limit: float | None = None
        self._timeout = timeout
        self._sequence = 0
        self._barriers = 0
        self._coalesced: list[Flight] | None = None

    # Common to all collectives.

    def _start(
        self,
        kind: str,
        dtype: torch.dtype,
        given: tuple[int, int] = (0, 0),
        taken: tuple[int, int] = (0, 0),
        op: str = "sum",
        root: int = 0,
        factor: float | None = None,
        keep: object = None,
        counts: tuple[list[int] | None, list[int] | None] = (None, None),
        waits: bool = False,
    ) -> Handle:
        """Starts a collective on memory: address and number of bytes. `counts` are elements for each rank, of collectives that have them.
        Where PyTorch `waits` for it, it has ended when this returns, if no time bounds the wait: that takes less than two calls.
        """
        self._sequence += 1
        name = DTYPES.get(dtype)
        if name is None:
            # Elements that are only moved may have any type.
            size = dtype.itemsize if hasattr(dtype, "itemsize") else torch.empty((), dtype=dtype).element_size()
            name, counts = "uint8", tuple(each and [count * size for count in each] for each in counts)
        try:
            blocks = waits and self._limit is None
            return self.core.start(kind, *given, *taken, name, op, root, factor, counts, keep, self._stream(keep), blocks) or DONE
        except ShouterError as error:
            raise raised(error) from None

    def _stream(self, kept: object) -> int | None:
        """The stream that a call is ordered with, where its memory is on a GPU."""
        return stream_of(kept)

    def _waits(self, opts: Any) -> bool:
        """Whether PyTorch waits for the result of a call in it, and takes None for a handle then."""
        return _TAKES_NONE and self._coalesced is None and not getattr(opts, "asyncOp", True)

    def _answer(self, started: Started, waits: bool = False) -> Work | None:
        """The result of a call for PyTorch: a handle; or None, after the end, for a call that `waits`."""
        handle, outputs, finish = started
        if waits and handle is DONE:
            if finish is not None:
                finish()
            return None
        return self._answer_flight(Flight([handle], outputs, finish), waits)

    def _answer_all(self, started: Sequence[Started], waits: bool) -> Work | None:
        """The same, of several collectives."""
        return self._answer_flight(_together([Flight([handle], outputs, finish) for handle, outputs, finish in started]), waits)

    def _answer_flight(self, flight: Flight, waits: bool) -> Work | None:
        """The same, of a flight."""
        if waits:
            flight.wait(self._limit)
            return None
        if self._coalesced is not None:
            self._coalesced.append(flight)
        return Work(flight, self._limit)

    # Collectives of one tensor.

    def allreduce(self, tensors: Tensors, opts: Any) -> Work | None:
        waits = self._waits(opts)
        tensor = _single(tensors, "all_reduce")
        if waits and self._limit is None:
            # The most common call, with the most common kind of tensor: the checks below add a sixth to the time of a small one.
            name = SUMMED.get(tensor.dtype)
            if name is not None and opts.reduceOp == SUM and tensor.is_cpu and tensor.layout is STRIDED and tensor.is_contiguous() and not tensor.is_neg():
                self._sequence += 1
                at, size = tensor.data_ptr(), tensor.nbytes
                try:
                    self.core.start("all-reduce", at, size, at, size, name, "sum", 0, None, (None, None), tensor, None, True)
                except ShouterError as error:
                    raise raised(error) from None
                return None
        if tensor.layout is not STRIDED:
            return self._answer_flight(self._allreduce_sparse(tensor, opts), waits)
        return self._answer(self._allreduce(tensor, opts, waits), waits)

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Flight:
        op, factor = reduction(opts.reduceOp, tensor.dtype)
        if factor is not None:
            raise ArgumentError("all_reduce: PREMUL_SUM of a sparse tensor; multiply it, and use SUM")

        def begin(kind: str, given: torch.Tensor, taken: torch.Tensor, counts: Any) -> Handle:
            return self._start(kind, given.dtype, _span(given), _span(taken), keep=(given, taken), counts=counts)

        try:
            sums = Reduction(begin, self.core.size, tensor, op, "all_reduce", self._limit)
        except ShouterError as error:
            raise raised(error) from None

        def finish() -> None:
            copy_back([tensor], [sums.result()])

        return Flight(sums.handles, [tensor], finish)

    def _allreduce(self, tensor: torch.Tensor, opts: Any, waits: bool = False) -> Started:
        check(tensor, "all_reduce")
        dtype = tensor.dtype
        name_of(dtype, "all_reduce")
        op, factor = reduction(opts.reduceOp, dtype)
        own = writable(tensor)
        if own is not tensor:
            copy_back([own], [tensor])
        span = _span(own)
        handle = self._start("all-reduce", dtype, span, span, op, 0, factor, own, waits=waits)
        return handle, [tensor], _copying(tensor, own)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any) -> Work | None:
        return self._answer_all([self._allreduce(tensor, opts) for tensor in tensors], self._waits(opts))

    def broadcast(self, tensors: Tensors, opts: Any) -> Work | None:
        tensor = _single(tensors, "broadcast")
        check(tensor, "broadcast")
        root = opts.rootRank
        own = readable(tensor) if self.core.rank == root else writable(tensor)
        waits = self._waits(opts)
        handle = self._start("broadcast", tensor.dtype, (0, 0), _span(own), "sum", root, None, own, waits=waits)
        return self._answer((handle, [tensor], None if self.core.rank == root else _copying(tensor, own)), waits)

    def reduce(self, tensors: Tensors, opts: Any) -> Work | None:
        tensor = _single(tensors, "reduce")
        check(tensor, "reduce")
        name_of(tensor.dtype, "reduce")
        op, factor = reduction(opts.reduceOp, tensor.dtype)
        own = writable(tensor)
        if own is not tensor:
            copy_back([own], [tensor])
        is_root = self.core.rank == opts.rootRank
        span, waits = _span(own), self._waits(opts)
        handle = self._start("reduce", tensor.dtype, span, span if is_root else (0, 0), op, opts.rootRank, factor, own, waits=waits)
        return self._answer((handle, [tensor], _copying(tensor, own) if is_root else None), waits)

    def barrier(self, opts: Any = None) -> Work | None:
        waits = self._waits(opts)
        return self._answer((self._start("barrier", torch.uint8, waits=waits), [], None), waits)

    # Gathers.

    def _gather_into(self, output: torch.Tensor, given: torch.Tensor, waits: bool = False) -> Started:
        """Every rank's tensor into one, behind each other."""
        call = "all_gather_into_tensor"
        _same(given, output, call)
        own, into = readable(given), writable(output)
        handle = self._start("all-gather", own.dtype, _span(own), _span(into), keep=(own, into), waits=waits)
        return handle, [output], _copying(output, into)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work | None:
        waits = self._waits(opts)
        return self._answer(self._gather_into(output, given, waits), waits)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        started = [self._gather_into(output, given) for output, given in zip(outputs, inputs)]
        return self._answer_all(started, self._waits(opts))

    def allgather(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work | None:
        waits = self._waits(opts)
        return self._answer(self._gather_list(_single(outputs, "all_gather"), _single(inputs, "all_gather"), waits), waits)

    def _gather_list(self, outputs: Tensors, given: torch.Tensor, waits: bool = False) -> Started:
        call = "all_gather"
        self._one_each(outputs, call, "tensor_list")
        _same(given, outputs[0], call)
        own, into = readable(given), Block(outputs, call, is_input=False)
        if own.numel() != into.counts[self.core.rank]:
            raise ArgumentError(
                f"{call}: the tensor has {own.numel()} elements, and tensor_list has {into.counts[self.core.rank]} for this rank"
            )
        if into.even:
            handle = self._start("all-gather", own.dtype, _span(own), (into.address, into.bytes), keep=(own, into), waits=waits)
        else:
            counts = ([own.numel()], into.counts)
            spans = _span(own), (into.address, into.bytes)
            handle = self._start("all-gather-v", own.dtype, *spans, keep=(own, into), counts=counts, waits=waits)
        return handle, list(outputs), into.unpack

    def allgather_coalesced(self, outputs: Lists, inputs: Tensors, opts: Any = None) -> Work | None:
        """`outputs` has a list for each rank, which has a tensor for each input."""
        started = [self._gather_list([of_rank[index] for of_rank in outputs], given) for index, given in enumerate(inputs)]
        return self._answer_all(started, self._waits(opts))

    def gather(self, outputs: Lists, inputs: Tensors, opts: Any) -> Work | None:
        call, given = "gather", _single(inputs, "gather")
        check(given, call)
        own, root, waits = readable(given), opts.rootRank, self._waits(opts)
        if self.core.rank != root:
            handle = self._start(call, own.dtype, _span(own), root=root, keep=own, waits=waits)
            return self._answer((handle, [], None), waits)
        into = self._even(_single(outputs, call), given, call, "gather_list", is_input=False)
        handle = self._start(call, own.dtype, _span(own), (into.address, into.bytes), root=root, keep=(own, into), waits=waits)
        return self._answer((handle, list(into.tensors), into.unpack), waits)

    def gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Work | None:
        call, root, waits = "gather", opts.rootRank, self._waits(opts)
        check(given, call)
        own = readable(given)
        if self.core.rank != root:
            handle = self._start(call, own.dtype, _span(own), root=root, keep=own, waits=waits)
            return self._answer((handle, [], None), waits)
        _same(given, output, call)
        into = writable(output)
        handle = self._start(call, own.dtype, _span(own), _span(into), root=root, keep=(own, into), waits=waits)
        return self._answer((handle, [output], _copying(output, into)), waits)

    # Scatters.

    def scatter(self, outputs: Tensors, inputs: Lists, opts: Any) -> Work | None:
        call, output = "scatter", _single(outputs, "scatter")
        check(output, call)
        into, root, waits = writable(output), opts.rootRank, self._waits(opts)
        given = (0, 0)
        block = None
        if self.core.rank == root:
            block = self._even(_single(inputs, call), output, call, "scatter_list", is_input=True)
            given = (block.address, block.bytes)
        handle = self._start(call, output.dtype, given, _span(into), root=root, keep=(into, block), waits=waits)
        return self._answer((handle, [output], _copying(output, into)), waits)

    def _reduce_scatter(self, output: torch.Tensor, given: torch.Tensor, opts: Any, waits: bool = False) -> Started:
        call = "reduce_scatter_tensor"
        _same(given, output, call)
        name_of(given.dtype, call)
        op, factor = reduction(opts.reduceOp, given.dtype)
        own, into = readable(given), writable(output)
        handle = self._start("reduce-scatter", own.dtype, _span(own), _span(into), op, 0, factor, (own, into), waits=waits)
        return handle, [output], _copying(output, into)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any) -> Work | None:
        waits = self._waits(opts)
        return self._answer(self._reduce_scatter(output, given, opts, waits), waits)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any) -> Work | None:
        started = [self._reduce_scatter(output, given, opts) for output, given in zip(outputs, inputs)]
        return self._answer_all(started, self._waits(opts))

    def reduce_scatter(self, outputs: Tensors, inputs: Lists, opts: Any) -> Work | None:
        call, output, given = "reduce_scatter", _single(outputs, "reduce_scatter"), _single(inputs, "reduce_scatter")
        self._one_each(given, call, "input_list")
        _same(output, given[0], call)
        name_of(output.dtype, call)
        op, factor = reduction(opts.reduceOp, output.dtype)
        block, into = Block(given, call, is_input=True), writable(output)
        kind, counts = ("reduce-scatter", (None, None)) if block.even else ("reduce-scatter-v", (block.counts, [into.numel()]))
        spans, waits = ((block.address, block.bytes), _span(into)), self._waits(opts)
        handle = self._start(kind, output.dtype, *spans, op, 0, factor, (block, into), counts, waits)
        return self._answer((handle, [output], _copying(output, into)), waits)

    # All to all: a rank knows only its own sizes, so all of them have a number for each rank.

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work | None:
        call = "all_to_all"
        self._one_each(outputs, call, "output_tensor_list")
        self._one_each(inputs, call, "input_tensor_list")
        _same(inputs[0], outputs[0], call)
        given, into = Block(inputs, call, is_input=True), Block(outputs, call, is_input=False)
        spans, waits = ((given.address, given.bytes), (into.address, into.bytes)), self._waits(opts)
        handle = self._start("all-to-all-v", given.dtype, *spans, keep=(given, into), counts=(given.counts, into.counts), waits=waits)
        return self._answer((handle, list(outputs), into.unpack), waits)

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> Work | None:
        _same(given, output, "all_to_all_single")
        own, into = readable(given), writable(output)
        counts = self._split(own, input_splits, "input"), self._split(into, output_splits, "output")
        waits = self._waits(opts)
        handle = self._start("all-to-all-v", own.dtype, _span(own), _span(into), keep=(own, into), counts=counts, waits=waits)
        return self._answer((handle, [output], _copying(output, into)), waits)

    def _split(self, tensor: torch.Tensor, splits: Sequence[int], what: str) -> list[int]:
        """Elements for each rank, of rows for each rank."""
        rows, size = (tensor.shape[0] if tensor.dim() else 1), self.core.size
        if not splits:
            if rows % size:
                raise ArgumentError(f"all_to_all_single: {what} has {rows} rows, which {size} ranks do not divide; give {what}_split_sizes")
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows or min(splits) < 0:
            raise ArgumentError(f"all_to_all_single: {what}_split_sizes {list(splits)} are not the {rows} rows of {what} over {size} ranks")
        row = tensor.numel() // rows if rows else 0
        return [count * row for count in splits]

    # Messages.

    def send(self, tensors: Tensors, peer: int, tag: int) -> Work:
        tensor = _single(tensors, "send")
        check(tensor, "send")
        own = readable(tensor)
        try:
            handle = self.core.start_send(*_span(own), DTYPES.get(own.dtype, "uint8"), peer, tag, False, own, self._stream(own))
        except ShouterError as error:
            raise raised(error) from None
        return self._message(Flight([handle], [tensor]))

    def recv(self, tensors: Tensors, peer: int | None, tag: int) -> Work:
        tensor = _single(tensors, "recv")
        check(tensor, "recv")
        own = writable(tensor)
        name = DTYPES.get(own.dtype)
        count = own.numel() if name else bytes_of(own)
        try:
            handle = self.core.start_recv(*_span(own), name or "uint8", peer, tag, own, self._stream(own))
        except ShouterError as error:
            raise raised(error) from None

        def complete() -> None:
            status = handle.wait(0)
            if status.elements != count:
                raise Mismatch(
                    f"recv: {status.elements} elements came from rank {status.source} with tag {status.tag}, and the tensor has {count}; "
                    "give both ranks tensors of the same size",
                    rank=status.source, reason="diverged", operation="receive", ours=f"{count} elements", theirs=f"{status.elements} elements",
                )
            if own is not tensor:
                copy_back([tensor], [own])

        return self._message(Flight([handle], [tensor], complete))

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        return self.recv(tensors, None, tag)

    def _message(self, flight: Flight) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(flight)
        return Work(flight, self._limit)

    # Coalesced calls.

    def start_coalescing(self) -> None:
        self._coalesced = []

    def end_coalescing(self) -> Work:
        flights, self._coalesced = self._coalesced or [], None
        return Work(_together(flights), self._limit)

    # The group itself.

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier by messages to rank 0, which names the first rank that has not come in time, or all of them. The group goes on."""
        timeout = opts if isinstance(opts, timedelta) else getattr(opts, "timeout", None)
        # A negative time is none; zero is one.
        seconds = (self._timeout if timeout is None or timeout < timedelta(0) else timeout).total_seconds()
        # The texts of these errors are Gloo's, for programs that search for them.
        if seconds == 0:
            text = f"monitored_barrier: Rank {self.core.rank} timed out in monitoredBarrier after 0 s, before it could hear of others; give it a longer timeout"
            raise Deadline(text, rank=self.core.rank, reason="late", missing=[], operation="barrier", after=seconds)
        # PyTorch's tags are below; each barrier has its own tag, so that it ignores messages of an earlier one.
        tag, self._barriers = FIRST_TAG + self._barriers % FIRST_TAG, self._barriers + 1
        until = monotonic() + seconds
        if self.core.rank > 0:
            self.core.start_send(0, 0, "uint8", 0, tag)
            text = f"Rank {self.core.rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
            if not self._has_come(0, tag, until):
                text = f"monitored_barrier: {text}: it waits for others, or has not come itself, for {seconds:.3f} s"
                raise Deadline(text, rank=0, reason="late", missing=[0], operation="barrier", after=seconds)
            return
        peers = range(1, self.core.size)
        late: list[int] = []
        for peer in peers:
            if not self._has_come(peer, tag, until):
                late.append(peer)
                if not wait_all_ranks:
                    break
        if late:
            ranks = ", ".join(str(peer) for peer in late)
            who = "Ranks" if wait_all_ranks else "Rank"
            text = f"monitored_barrier: {who} {ranks} failed to pass monitoredBarrier in {seconds:.3f} s; see what they do"
            raise Deadline(text, rank=late[0], reason="late", missing=late, operation="barrier", after=seconds)
        for peer in peers:
            self.core.start_send(0, 0, "uint8", peer, tag)

    def _has_come(self, peer: int, tag: int, until: float) -> bool:
        """Waits for an empty message; whether it has come in time."""
        message = self.core.start_recv(0, 0, "uint8", peer, tag)
        try:
            try:
                message.wait(max(0.0, until - monotonic()))
            except Timeout:
                # Else it would be under way until the end.
                if message.cancel():
                    return False
                message.wait()
        except ShouterError as error:
            raise raised(error) from None
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets how long a wait may take; a group has ended, as far as PyTorch is concerned, when one took longer."""
        self._limit = timeout.total_seconds()
        self._timeout = timeout

    def shutdown(self) -> None:
        """Leaves the group without waiting for the others, who need nothing more from this rank for what has ended here."""
        self.core.leave()

    def abort(self) -> None:
        self.core.leave()

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """It counts from 0 on all ranks anyway."""

    def getBackendName(self) -> str:
        return "shouter"

    def name(self) -> str:
        return "shouter"

    def _part(self, ranks: Sequence[int], timeout: timedelta) -> _core.Group:
        return _groups.part(self.core, ranks, timeout)

    def _one_each(self, tensors: Tensors, call: str, what: str) -> None:
        if len(tensors) != self.core.size:
            raise ArgumentError(f"{call}: {what} has {len(tensors)} tensors, and the group has {self.core.size} ranks; give one for each")

    def _even(self, tensors: Tensors, own: torch.Tensor, call: str, what: str, *, is_input: bool) -> Block:
        """One tensor for each rank, as large as this rank's."""
        self._one_each(tensors, call, what)
        _same(own, tensors[0], call)
        block = Block(tensors, call, is_input=is_input)
        if set(block.counts) != {own.numel()}:
            raise ArgumentError(f"{call}: {what} has tensors of {block.counts} elements, and the tensor has {own.numel()}; all have to be as large")
        return block


def _single(given: Sequence[Any], call: str) -> Any:
    """PyTorch gives lists, of a time when a process had several GPUs."""
    if len(given) != 1:
        raise ArgumentError(f"{call}: {len(given)} tensors of one process; the backend takes one at a time")
    return given[0]


def _same(one: torch.Tensor, other: torch.Tensor, call: str) -> None:
    check(one, call)
    check(other, call)
    same_device((one, other), call)
    if one.dtype != other.dtype:
        raise ArgumentError(f"{call}: the input is of {one.dtype}, and the output of {other.dtype}; both have to be of one type")


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), bytes_of(tensor)


def _copying(tensor: torch.Tensor, own: torch.Tensor) -> Callable[[], None] | None:
    return None if own is tensor else lambda: copy_back([tensor], [own])


def _together(flights: Sequence[Flight]) -> Flight:
    """Several calls as one."""

    def complete() -> None:
        for flight in flights:
            flight.complete()

    handles = [handle for flight in flights for handle in flight.handles]
    return Flight(handles, [tensor for flight in flights for tensor in flight.outputs], complete)
