"""Tensors as the library takes them: an address, a number of bytes, the names of types and reductions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.distributed_c10d import ReduceOp

from ..errors import ArgumentError

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

_NAMES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2"
)
# Older versions of PyTorch lack some of these.
DTYPES = {getattr(torch, name): name for name in _NAMES.split() if hasattr(torch, name)}

_OPS = {
    ReduceOp.RedOpType.SUM: "sum",
    ReduceOp.RedOpType.AVG: "avg",
    ReduceOp.RedOpType.PRODUCT: "prod",
    ReduceOp.RedOpType.MIN: "min",
    ReduceOp.RedOpType.MAX: "max",
    ReduceOp.RedOpType.BAND: "band",
    ReduceOp.RedOpType.BOR: "bor",
    ReduceOp.RedOpType.BXOR: "bxor",
    ReduceOp.RedOpType.PREMUL_SUM: "sum",
}

SUM = ReduceOp.RedOpType.SUM

# The types whose sum is one, without complex ones, whose tensors may be conjugated.
SUMMED = {dtype: name for dtype, name in DTYPES.items() if dtype is not torch.bool and not dtype.is_complex}

STRIDED = torch.strided

# The reductions of truth values: a sum says whether any is true, a product whether all are.
_OPS_OF_BOOL = {"sum": "lor", "max": "lor", "bor": "lor", "prod": "land", "min": "land", "band": "land", "bxor": "lxor"}


def reduction(op: ReduceOp, dtype: torch.dtype) -> tuple[str, float | None]:
    """The library's name of a reduction, and the factor of PREMUL_SUM."""
    # The most common case first: to look an operation up takes longer than a small all-reduce.
    if op == SUM and dtype is not torch.bool:
        return "sum", None
    kind = op.op
    name = _OPS[kind]
    if dtype is torch.bool:
        name = _OPS_OF_BOOL.get(name, name)
    if kind != ReduceOp.RedOpType.PREMUL_SUM:
        return name, None
    if not hasattr(op, "__getstate__"):
        raise ArgumentError("PREMUL_SUM: this version of PyTorch does not tell a backend the factor; multiply the tensor, and use SUM")
    return name, float(op.__getstate__()[1])


def name_of(dtype: torch.dtype, call: str) -> str:
    """The library's name of an element type that is reduced."""
    name = DTYPES.get(dtype)
    if name is None:
        raise ArgumentError(f"{call}: elements of {dtype} cannot be reduced; convert the tensor, as by .to(torch.float32)")
    return name


def check(tensor: torch.Tensor, call: str) -> None:
    """Refuses tensors that are not in memory of this host or of an NVIDIA GPU as strides say."""
    if tensor.layout is STRIDED and tensor.is_cpu:
        return
    if tensor.layout is not STRIDED:
        raise ArgumentError(f"{call}: a sparse tensor ({tensor.layout}); only all_reduce takes sparse tensors: convert it by .to_dense()")
    kind = tensor.device.type
    if kind == "cuda":
        return
    if kind == "meta":
        raise ArgumentError(f"{call}: a meta tensor has no data; materialize it first, as by torch.empty_like(t, device='cpu')")
    raise ArgumentError(
        f"{call}: a tensor on {tensor.device}, and this backend takes tensors in the memory of CPUs and NVIDIA GPUs; "
        f"copy it by .cpu(), or give {kind} another backend"
    )


def same_device(tensors: Sequence[torch.Tensor], call: str) -> None:
    """Refuses tensors of one call that are not in one memory."""
    for tensor in tensors[1:]:
        if tensor.device != tensors[0].device:
            raise ArgumentError(f"{call}: tensors on {tensors[0].device} and {tensor.device}; give all of them on one device")


def stream_of(kept: object) -> int | None:
    """The stream that the memory of a call is ordered with, where that is a GPU's: the current one of its device.

    `kept` is what a call keeps: tensors, blocks of them, or several.
    """
    on_gpu = getattr(kept, "is_cuda", None)
    if on_gpu is False:
        return None
    if isinstance(kept, (tuple, list)):
        return next((stream for stream in map(stream_of, kept) if stream is not None), None)
    if isinstance(kept, Block):
        return stream_of(kept.tensors[0])
    if not on_gpu:
        return None
    return int(torch.cuda.current_stream(kept.device).cuda_stream)


def plain(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in memory one behind the other, as they are."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy whose elements lie one behind the other."""
    return tensor if plain(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


def writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or memory for its elements from which they are copied later."""
    return tensor if plain(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def copy_back(tensors: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies what came into memory of its own to where it belongs."""
    copied: torch.Tensor | None = None
    with torch.no_grad():
        for tensor, source in zip(tensors, sources):
            if tensor is not source:
                tensor.copy_(source.view(tensor.shape) if source.layout is STRIDED else source)
                copied = tensor if tensor.is_cuda else copied
    if copied is not None:
        # Another stream than this thread's may use it next.
        torch.cuda.current_stream(copied.device).synchronize()


def bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def adjoining(tensors: Sequence[torch.Tensor]) -> int | None:
    """The address of the first, where each lies right behind the one before it: they are one block of memory then."""
    begin = end = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or not plain(tensor):
            return None
        end += bytes_of(tensor)
    return begin


class Block:
    """Tensors as one block of memory, their own where they adjoin."""

    def __init__(self, tensors: Sequence[torch.Tensor], call: str, *, is_input: bool) -> None:
        self.tensors = tensors
        first = tensors[0]
        same_device(tensors, call)
        for tensor in tensors:
            check(tensor, call)
            if tensor.dtype != first.dtype:
                raise ArgumentError(f"{call}: a list of tensors of {first.dtype} and {tensor.dtype}; all have to be of one type")
        self.dtype = first.dtype
        self.counts = [tensor.numel() for tensor in tensors]
        self.count = sum(self.counts)
        self.bytes = self.count * first.element_size()
        self.staged: torch.Tensor | None = None
        address = adjoining(tensors)
        if address is None:
            self.staged = torch.empty(self.count, dtype=self.dtype, device=first.device)
            if is_input:
                copy_back(self._parts(), tensors)
            address = self.staged.data_ptr()
        self.address = address

    @property
    def even(self) -> bool:
        """Whether all are of one length."""
        return min(self.counts) == max(self.counts)

    def _parts(self) -> list[torch.Tensor]:
        assert self.staged is not None
        return [part.view(tensor.shape) for part, tensor in zip(self.staged.split(self.counts), self.tensors)]

    def unpack(self) -> None:
        """Copies what came into memory of its own to the tensors."""
        if self.staged is not None:
            copy_back(self.tensors, self._parts())
