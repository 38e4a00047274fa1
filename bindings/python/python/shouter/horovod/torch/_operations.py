"""Collectives of tensors: those that wait, those that are started, and the handles of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

import torch

from ..._core import Work, check_type
from ..._group import Group, Tensor
from ...errors import ArgumentError
from ...torch._sparse import Reduction, check as check_sparse
from ...torch._tensors import DTYPES, bytes_of, check, copy_back, name_of, readable, stream_of
from .. import _turns as turns
from .._job import ProcessSet, global_process_set
from .._join import check_set, join as join_by
from .._names import Names, Operation
from .._reductions import Average, reduction
from .._turns import enter, refusals, tell_reduction
from ._compression import Compression

Result = Any

_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class Handle:
    """An operation under way; `synchronize` returns its result."""

    def __init__(self, operation: Union[Operation, Work, Reduction], finish: Callable[[], Result], turn: turns.Turn | None = None) -> None:
        self._operation, self._finish, self._turn = operation, finish, turn
        self._result: Result = None
        self._ended = False

    def done(self) -> bool:
        return self._ended or self._operation.done()

    def wait(self) -> Result:
        if not self._ended:
            if self._turn is not None:
                turns.check_refused(self._turn.wait())
            self._operation.wait()
            self._result, self._ended = self._finish(), True
        return self._result

    __call__ = wait


class Handles:
    """Several of them, as one."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = handles

    def done(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def wait(self) -> list[Result]:
        return [handle.wait() for handle in self._handles]


def poll(handle: Handle | Handles) -> bool:
    """Whether an operation has ended. Asked for the first time of one with a name, it waits until all ranks have submitted that."""
    return handle.done()


def synchronize(handle: Handle | Handles) -> Result:
    """Waits for an operation, and returns its result; raises its error."""
    return handle.wait()


def members(process_set: ProcessSet) -> Names:
    return process_set._member()


def begin(
    group: Group,
    kind: str,
    given: torch.Tensor | None,
    taken: torch.Tensor | None,
    op: str = "sum",
    root: int = 0,
    counts: tuple[list[int] | None, list[int] | None] = (None, None),
) -> Work:
    """Starts an operation of the library, whose turn has been told."""
    keep = tuple(tensor for tensor in (given, taken) if tensor is not None)
    spans = [(0, 0) if tensor is None else (tensor.data_ptr(), bytes_of(tensor)) for tensor in (given, taken)]
    dtype = name_of(keep[0].dtype, kind)
    work = group._core.start(kind, *spans[0], *spans[1], dtype, op, root, None, counts, keep, stream_of(keep), False)
    assert work is not None
    return work


def element_of(dtype: torch.dtype, op: str | None, call: str) -> str:
    """The library's name of an element type, which has this reduction, if it is to be reduced."""
    name = name_of(dtype, call)
    check_type(name, op)
    return name


def prepared(
    tensor: torch.Tensor, output: torch.Tensor | None, scale: tuple[float, float], compression: Any = Compression.none
) -> tuple[torch.Tensor, Callable[[], torch.Tensor]]:
    """What is sent of a tensor, and gets the reduction in its place; and what then makes the result of it, in `output` if there is one."""
    check(tensor, "allreduce")
    before, after = scale
    source = tensor.detach()
    sent, context = compression.compress(readable(source))
    if sent.data_ptr() == source.data_ptr() and (output is None or output.data_ptr() != sent.data_ptr()):
        sent = sent.clone(memory_format=torch.contiguous_format)
    if before != 1:
        sent.mul_(before)

    def finish() -> torch.Tensor:
        if after != 1:
            sent.mul_(after)
        result = compression.decompress(sent, context)
        if output is None:
            return result.view(tensor.shape)
        if output.data_ptr() != result.data_ptr():
            with torch.no_grad():
                output.copy_(result.view(output.shape))
        return output

    return sent, finish


def reduce_by(
    names: Names,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str | None,
    op: str,
    scale: tuple[float, float],
    compression: Any = Compression.none,
) -> Handle:
    """Starts an all-reduce, whose result goes to `output`, which may be the tensor itself, or is a tensor of its own."""
    if tensor.layout is not torch.strided:
        return reduce_sparse(names, tensor, output, name, op, scale)
    with refusals(names.group, "allreduce"):
        sent, finish = prepared(tensor, output, scale, compression)
        dtype = element_of(sent.dtype, op, "allreduce")

    def start() -> Work:
        return begin(names.group, "all-reduce", sent, sent, op)

    if name is None:
        turn = tell_reduction(names.group, sent.numel(), dtype, op)
        return Handle(start(), finish, turn)
    return Handle(names.submit(Tensor(f"allreduce.{name}", sent.numel(), dtype, op), start), finish)


def reduce_sparse(
    names: Names, tensor: torch.Tensor, output: torch.Tensor | None, name: str | None, op: str, scale: tuple[float, float]
) -> Handle:
    """The same of a sparse tensor, of which nothing is compressed."""
    before, after = scale
    with refusals(names.group, "allreduce"):
        check_sparse(tensor, op, "allreduce")
        if scale != (1, 1) and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            raise ArgumentError(f"allreduce: a factor for a sparse tensor of {tensor.dtype}; multiply it by a whole number before or after")
    sent = tensor.detach() * before if before != 1 else tensor
    started: list[Reduction] = []

    def start() -> Reduction:
        started.append(begin_sparse(names.group, sent, op))
        return started[0]

    def finish() -> torch.Tensor:
        result = started[0].result()
        result = result * after if after != 1 else result
        if output is not None:
            copy_back([output], [result])
        return result if output is None else output

    if name is None:
        enter(names.group, "allreduce of a sparse tensor")
        return Handle(start(), finish)
    spec = Tensor(f"sparse_allreduce.{name}", sent.numel(), name_of(sent.dtype, "allreduce"), op, kind="sparse allreduce")
    return Handle(names.submit(spec, start), finish)


def chosen(op: str | None, average: bool | None, call: str, process_set: ProcessSet) -> str:
    """The reduction that is asked for."""
    with refusals(members(process_set).group, call):
        return reduction(op, average, call)


def begin_sparse(group: Group, tensor: torch.Tensor, op: str) -> Reduction:
    """Starts the sum or mean of sparse tensors, when all ranks have said how many rows they have."""

    def start(kind: str, given: torch.Tensor, taken: torch.Tensor, counts: Any) -> Work:
        return begin(group, kind, given, taken, counts=counts)

    return Reduction(start, group.size, tensor, op, "allreduce")


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None = None, op: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `allreduce` of a sparse tensor. Its result is that of the handle, called or given to `synchronize`."""
    return reduce_by(members(process_set), tensor, None, name, chosen(op, None, "allreduce", process_set), (1.0, 1.0))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `allreduce`; without compression, and without a gradient. Ranks may submit operations with names in any order; these start when a
    rank waits for one.
    """
    scale = (prescale_factor, postscale_factor)
    return reduce_by(members(process_set), tensor, None, name, chosen(op, average, "allreduce", process_set), scale)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """The same in place."""
    scale = (prescale_factor, postscale_factor)
    return reduce_by(members(process_set), tensor, tensor, name, chosen(op, average, "allreduce", process_set), scale)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor in place over all ranks: its average, unless `op` says otherwise."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handles:
    """Starts `grouped_allreduce`. Without a name, all ranks call it in the same order, and it waits until they have."""
    how = (grouped(tensors, average, name, op, process_set), prescale_factor, postscale_factor, process_set)
    return Handles([allreduce_async(tensor, None, numbered(name, at), *how) for at, tensor in enumerate(tensors)])


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handles:
    """The same in place."""
    how = (grouped(tensors, average, name, op, process_set), prescale_factor, postscale_factor, process_set)
    return Handles([allreduce_async_(tensor, None, numbered(name, at), *how) for at, tensor in enumerate(tensors)])


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces each of these tensors in place."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped(tensors: Sequence[torch.Tensor], average: bool | None, name: str | None, op: str | None, process_set: ProcessSet) -> str:
    """Begins the all-reduces of a group, unless this rank or another one refuses one of them; returns their reduction."""
    group = members(process_set).group
    with refusals(group, "grouped_allreduce"):
        how = reduction(op, average, "grouped_allreduce")
        for tensor in tensors:
            check(tensor, "grouped_allreduce") if tensor.layout is torch.strided else check_sparse(tensor, how, "grouped_allreduce")
            element_of(tensor.dtype, how, "grouped_allreduce")
    if name is None:
        turns.begin_group(group)
    return how


def numbered(name: str | None, at: int) -> str | None:
    return None if name is None else f"{name}.{at}"


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `broadcast`."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts `broadcast_`."""
    return broadcast_named(members(process_set), tensor, root_rank, name)


def broadcast_named(names: Names, tensor: torch.Tensor, root_rank: int, name: str | None) -> Handle:
    """The same."""
    with refusals(names.group, "broadcast"):
        check(tensor, "broadcast")
        if not 0 <= root_rank < names.group.size:
            raise ArgumentError(f"broadcast: root_rank {root_rank}; ranks are 0 to {names.group.size - 1}")
        sent, dtype = readable(tensor.detach()), element_of(tensor.dtype, None, "broadcast")

    def finish() -> torch.Tensor:
        if sent.data_ptr() != tensor.data_ptr():
            with torch.no_grad():
                tensor.copy_(sent.view(tensor.shape))
        return tensor

    def start() -> Work:
        return begin(names.group, "broadcast", sent if names.group.rank == root_rank else None, sent, root=root_rank)

    if name is None:
        enter(names.group, "broadcast")
        return Handle(start(), finish)
    spec = Tensor(f"broadcast.{name}", sent.numel(), dtype, kind="broadcast", root=root_rank)
    return Handle(names.submit(spec, start), finish)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Gives every rank the tensor of `root_rank`, in place."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def rows_of(tensor: torch.Tensor, group: Group, call: str) -> tuple[list[int], int]:
    """The number of rows of each rank, and the elements of a row, which are as many everywhere."""
    with refusals(group, call):
        check(tensor, call)
        element_of(tensor.dtype, None, call)
        if tensor.dim() == 0:
            raise ArgumentError(f"{call}: a tensor without dimensions; give it one, as by .reshape(1)")
    width = tensor[0].numel() if tensor.shape[0] else torch.Size(tensor.shape[1:]).numel()
    told = enter(group, call, tensor.shape[0], width)
    for rank, (_, other, *_) in enumerate(told):
        if other != width:
            raise ArgumentError(f"{call}: a row has {width} elements here and {other} on rank {rank}; only the first dimension may differ")
    return [rows for rows, *_ in told], width


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """Starts `allgather`; the numbers of rows are exchanged before it returns. All ranks call it in the same order."""
    group = members(process_set).group
    rows, width = rows_of(tensor, group, "allgather")
    own = readable(tensor.detach())
    into = torch.empty((sum(rows), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    counts = [count * width for count in rows]
    return Handle(begin(group, "all-gather-v", own, into, counts=([own.numel()], counts)), lambda: into)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts `alltoall`; the numbers of rows are exchanged before it returns. All ranks call it in the same order."""
    group = members(process_set).group
    with refusals(group, "alltoall"):
        rows = tensor.shape[0] if tensor.dim() else 0
        if splits is None:
            if not rows or rows % group.size:
                raise ArgumentError(f"alltoall: {rows} rows, which {group.size} ranks do not divide; give splits")
            given = [rows // group.size] * group.size
        else:
            given = [int(count) for count in splits]
        if len(given) != group.size or sum(given) != rows or min(given) < 0:
            raise ArgumentError(f"alltoall: splits {given} are not the {rows} rows over {group.size} ranks")
    _, width = rows_of(tensor, group, "alltoall")
    mine, theirs = torch.tensor(given, device="cpu"), torch.zeros(group.size, dtype=torch.int64, device="cpu")
    begin(group, "all-to-all", mine, theirs).wait()
    own = readable(tensor.detach())
    into = torch.empty((int(theirs.sum()), *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    counts = ([count * width for count in given], [count * width for count in theirs.tolist()])
    work = begin(group, "all-to-all-v", own, into, counts=counts)
    return Handle(work, lambda: into if splits is None else (into, theirs.to(torch.int32)))


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts `reducescatter`. All ranks call it in the same order."""
    group = members(process_set).group
    with refusals(group, "reducescatter"):
        check(tensor, "reducescatter")
        op = reduction(op, None, "reducescatter")
        element_of(tensor.dtype, op, "reducescatter")
        if tensor.dim() == 0:
            raise ArgumentError("reducescatter: a tensor without dimensions; give it one, as by .reshape(1)")
    each, more = divmod(tensor.shape[0], group.size)
    rows = [each + (rank < more) for rank in range(group.size)]
    enter(group, "reducescatter")
    own = readable(tensor.detach())
    if prescale_factor != 1:
        own = own.clone().mul_(prescale_factor)
    width = own.numel() // tensor.shape[0] if tensor.shape[0] else 0
    into = torch.empty((rows[group.rank], *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    work = begin(group, "reduce-scatter-v", own, into, op, counts=([count * width for count in rows], [into.numel()]))
    return Handle(work, lambda: into.mul_(postscale_factor) if postscale_factor != 1 else into)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it, but for those that have joined."""
    turns.barrier(members(process_set).group)


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data. Until all ranks have joined, it takes part with zeroes in their all-reduces by Average or Sum, whose mean
    stays that of all ranks, and in the steps of their optimizers. Returns the rank that joined last.

    `device` is that of the zeroes for tensors that are no gradients: a GPU's number, or -1 for the memory of the host. All ranks of the job join: other
    process sets are refused.
    """
    check_set(process_set)
    where = "cpu" if device < 0 else f"cuda:{device}"

    def zeroes(group: Group, elements: int, dtype: str, op: str) -> Work:
        given = torch.zeros(elements, dtype=_DTYPES[dtype], device=where)
        return begin(group, "all-reduce", given, given, op)

    return join_by(members(global_process_set), zeroes)
