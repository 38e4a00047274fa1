"""The collectives through which gradients flow back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import ArgumentError
from .._job import ProcessSet, global_process_set
from .._reductions import Average, Sum
from . import _operations as started
from ._compression import Compression
from ._operations import members, synchronize


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Any, op: str, scale: tuple[float, float], process_set: ProcessSet, compression: Any) -> Any:
        ctx.how = (op, scale, process_set)
        return synchronize(started.reduce_by(members(process_set), tensor, None, name, op, scale, compression))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, scale, process_set = ctx.how
        if op not in (Average, Sum):
            raise ArgumentError(f"allreduce: no gradient flows through the reduction {op}; use Average or Sum")
        return synchronize(started.reduce_by(members(process_set), gradient, None, None, op, scale)), None, None, None, None, None


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """A tensor with the reduction over all ranks: their average, unless `op` says otherwise. The input is multiplied by `prescale_factor`,
    and the result by `postscale_factor`.
    """
    scale = (prescale_factor, postscale_factor)
    return _Allreduce.apply(tensor, name, started.chosen(op, average, "allreduce", process_set), scale, process_set, compression)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """The same of several tensors."""
    how = started.grouped(tensors, average, name, op, process_set)
    each = (compression, how, prescale_factor, postscale_factor, process_set)
    return [allreduce(tensor, None, started.numbered(name, at), *each) for at, tensor in enumerate(tensors)]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, process_set: ProcessSet) -> Any:
        result = synchronize(started.allgather_async(tensor, process_set=process_set))
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = synchronize(started.reduce_by(members(ctx.process_set), gradient, None, None, Sum, (1.0, 1.0)))
        group = members(ctx.process_set).group
        rows, _ = started.rows_of(torch.empty(ctx.rows, 0, device="cpu"), group, "allgather")
        return whole.narrow(0, sum(rows[: group.rank]), ctx.rows), None


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The rows of all ranks' tensors, by rank; only the first dimension may differ. All ranks call it in the same order."""
    return _Allgather.apply(tensor, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Any, process_set: ProcessSet) -> Any:
        ctx.how = (root_rank, process_set)
        return synchronize(started.broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        root_rank, process_set = ctx.how
        whole = synchronize(started.reduce_by(members(process_set), gradient, None, None, Average, (1.0, 1.0)))
        return (whole if members(process_set).group.rank == root_rank else torch.zeros_like(whole)), None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """A tensor with the elements of `root_rank`'s."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, process_set: ProcessSet) -> Any:
        given = splits
        if splits is None and tensor.dim():
            size = members(process_set).group.size
            # Rows that ranks do not divide are refused with the reason.
            given = None if tensor.shape[0] % size else [tensor.shape[0] // size] * size
        output, received = synchronize(started.alltoall_async(tensor, given, process_set=process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        back, _ = synchronize(started.alltoall_async(gradient, ctx.received, process_set=ctx.process_set))
        return back, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives splits[i] rows to rank i, and as many to each without `splits`; returns the rows that came, by rank, and with `splits` also how
    many came from each. All ranks call it in the same order.
    """
    output, received = _Alltoall.apply(tensor, splits, process_set)
    return output if splits is None else (output, received)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: str, scale: tuple[float, float], process_set: ProcessSet) -> Any:
        ctx.how = (op, scale, process_set)
        return synchronize(started.reducescatter_async(tensor, None, op, process_set, *scale))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, scale, process_set = ctx.how
        if op not in (Average, Sum):
            raise ArgumentError(f"reducescatter: no gradient flows through the reduction {op}; use Average or Sum")
        factor = scale[0] * scale[1]
        if op == Average:
            factor /= members(process_set).group.size
        whole = synchronize(started.allgather_async(gradient, process_set=process_set))
        return whole * factor, None, None, None


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: str = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces over all ranks, and gives each its rows: as many to each, and one more to the first where ranks do not divide them. All ranks
    call it in the same order.
    """
    how = started.chosen(op, None, "reducescatter", process_set)
    sent, context = compression.compress(tensor)
    result = _Reducescatter.apply(sent, how, (prescale_factor, postscale_factor), process_set)
    return compression.decompress(result, context)
