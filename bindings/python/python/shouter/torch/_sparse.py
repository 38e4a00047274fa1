"""Sums of sparse tensors (`torch.sparse_coo`), as embeddings have for gradients: rows of all ranks are gathered, and those of one index added.

Ranks first exchange how many rows each has, which the start waits for. Then every rank gets all rows, and adds them in the order of the ranks: the
same bits everywhere. Where the rows of all are more than a dense tensor would move, the tensors are reduced as dense ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ArgumentError, Mismatch
from ._tensors import VERSION, bytes_of

# Starts a collective of the library: its kind, input, output, and numbers of elements by rank.
Begin = Callable[[str, torch.Tensor, torch.Tensor, tuple[Any, Any]], Any]

_NO_COUNTS = (None, None)
# PyTorch 2 warns where nobody says whether indices are to be checked.
_UNCHECKED = {} if VERSION < (2, 0) else {"check_invariants": False}
# Sums of these are made in float32, as in the library.
_SMALL = (torch.float16, torch.bfloat16)
# The types that PyTorch itself can add up, in an order that all ranks know.
_ADDED = (
    *_SMALL, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def check(tensor: torch.Tensor, op: str, call: str) -> None:
    """Refuses what has no sum of this kind."""
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentError(f"{call}: a sparse tensor ({tensor.layout}); of sparse layouts only torch.sparse_coo is supported: convert it by .to_sparse_coo()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(f"{call}: a sparse tensor on {tensor.device}; give it on the CPU or an NVIDIA GPU")
    if op not in ("sum", "avg"):
        raise ArgumentError(f"{call}: {op} of a sparse tensor; there are SUM and AVG only: convert it by .to_dense()")
    if tensor.dtype not in _ADDED:
        raise ArgumentError(f"{call}: a sparse tensor of {tensor.dtype} cannot be added up; convert it, as by .to(torch.float32)")
    if op == "avg" and not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        raise ArgumentError(f"{call}: the mean of a sparse tensor of {tensor.dtype}; take the sum")
    if tensor.sparse_dim() == 0:
        raise ArgumentError(f"{call}: a sparse tensor without sparse dimensions; convert it by .to_dense()")


class Reduction:
    """The sum or mean of one sparse tensor of each rank, in progress.

    `limit` is the time in seconds for which the start waits for the other ranks, or None: the group's deadline. Where it is over, those that
    come later wait for this rank in vain.
    """

    def __init__(self, begin: Begin, size: int, tensor: torch.Tensor, op: str, call: str, limit: float | None = None) -> None:
        check(tensor, op, call)
        own = tensor.detach().coalesce()
        self._size, self._op = size, op
        counts, self._dims = _agree(begin, size, own, op, call, limit)
        if own.sparse_dim() != self._dims:
            own = without_rows(own, self._dims)
        self._shape = own.shape
        keys, values = _keys(own), own.values().contiguous()
        self._row = values.shape[1:]
        width = self._row.numel()
        total = sum(counts)
        self._counts, self._dense = counts, None
        self.handles: list[Any] = []
        if total * (8 + width * own.element_size()) > 2 * bytes_of(own):
            # A dense all-reduce moves a tensor twice.
            self._dense = own.to_dense().contiguous()
            self.handles = [begin("all-reduce", self._dense, self._dense, _NO_COUNTS)]
            return
        self._keys = keys.new_empty(total)
        self._values = values.new_empty((total, *self._row))
        # What is read has to stay.
        self._own = keys, values
        if total:
            of_values = [count * width for count in counts]
            self.handles = [
                begin("all-gather-v", keys, self._keys, ([len(keys)], counts)),
                begin("all-gather-v", values, self._values, ([values.numel()], of_values)),
            ]

    def done(self) -> bool:
        return all(handle.done() for handle in self.handles)

    def wait(self) -> None:
        for handle in self.handles:
            handle.wait()

    def result(self) -> torch.Tensor:
        """The sum or mean, with its indices in order, when all handles have ended well."""
        with torch.no_grad():
            found = self._added() if self._dense is None else self._dense.to_sparse(self._dims).coalesce()
            if self._op == "avg":
                found.values().div_(self._size)
            return found

    def _added(self) -> torch.Tensor:
        keys, order = torch.sort(self._keys, stable=True)
        is_first = torch.ones_like(keys, dtype=torch.bool)
        torch.ne(keys[1:], keys[:-1], out=is_first[1:])
        every = keys[is_first]
        # The row of each index from the lowest rank that has it: most rows of an embedding are one rank's only.
        sums = self._values[order[is_first]]
        if len(every) < len(keys):
            type_of_sum = torch.float32 if sums.dtype in _SMALL else sums.dtype
            sums = self._add_others(sums.to(type_of_sum), is_first, order).to(sums.dtype)
        found = torch.sparse_coo_tensor(_indices(every, self._shape[: self._dims]), sums, self._shape, **_UNCHECKED)
        # Each index is there once, in order.
        return found._coalesced_(True)

    def _add_others(self, sums: torch.Tensor, is_first: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Adds the rows of further ranks. A rank has each index once, so the order of an element's sum is that of the ranks."""
        others = ~is_first
        rows, places = order[others], (is_first.cumsum(0) - 1)[others]
        begin = 0
        for count in self._counts:
            of_rank = (rows >= begin) & (rows < begin + count)
            sums.index_add_(0, places[of_rank], self._values[rows[of_rank]].to(sums.dtype))
            begin += count
        return sums


def without_rows(like: torch.Tensor, dimensions: int) -> torch.Tensor:
    """A sparse tensor of zeroes, with the shape, type and device of a dense one."""
    indices = torch.zeros((dimensions, 0), dtype=torch.int64, device=like.device)
    values = torch.zeros((0, *like.shape[dimensions:]), dtype=like.dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, like.shape, **_UNCHECKED)


def _keys(tensor: torch.Tensor) -> torch.Tensor:
    """One number for each index of a coalesced tensor, in ascending order."""
    indices = tensor.indices()
    keys = indices[0].clone()
    for dimension in range(1, tensor.sparse_dim()):
        keys = keys * tensor.shape[dimension] + indices[dimension]
    return keys.contiguous()


def _indices(keys: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The indices of such numbers."""
    if len(shape) == 1:
        return keys[None]
    by_dimension = []
    for length in reversed(shape):
        by_dimension.append(keys % length)
        keys = torch.div(keys, length, rounding_mode="floor")
    return torch.stack(by_dimension[::-1])


def _agree(begin: Begin, size: int, own: torch.Tensor, op: str, call: str, limit: float | None) -> tuple[list[int], int]:
    """How many rows each rank has, and the number of sparse dimensions, of tensors of one shape and type, and for one reduction.

    A tensor without rows may have any number of sparse dimensions: PyTorch changes it when it sets a gradient to zero.
    """
    digest = int.from_bytes(hashlib.sha256(repr(tuple(own.shape)).encode()).digest()[:7], "little")
    about = [digest, own.numel(), own.sparse_dim(), _ADDED.index(own.dtype), int(op == "avg")]
    mine = torch.tensor([*about, own._nnz()], device="cpu")
    everyone = torch.zeros((size, len(mine)), dtype=torch.int64, device="cpu")
    handle = begin("all-gather", mine, everyone, _NO_COUNTS)
    handle.wait() if limit is None else handle.wait(limit)
    found = everyone.tolist()
    of_rows = [row[2] for row in found if row[-1]]
    dimensions = of_rows[0] if of_rows else own.sparse_dim()
    about[2] = dimensions if own._nnz() == 0 else about[2]
    for rank, (*other, rows) in enumerate(found):
        other[2] = about[2] if rows == 0 else other[2]
        if other != about:
            ours, theirs = _view(about), _view(other)
            shape = f" of shape {tuple(own.shape)}" if other[0] != digest else ""
            text = f"{call} of sparse tensors: {ours}{shape} here, {theirs} on rank {rank}{' in another shape' if shape else ''}; all have to be alike"
            raise Mismatch(text, rank=rank, reason="diverged", operation="all-reduce", ours=ours, theirs=theirs)
    return [row[-1] for row in found], dimensions


def _view(about: list[int]) -> str:
    _, elements, dimensions, dtype, is_mean = about
    return f"{'mean' if is_mean else 'sum'} of {elements} elements of {_ADDED[dtype]}, {dimensions} sparse dimension{'s' if dimensions > 1 else ''}"
