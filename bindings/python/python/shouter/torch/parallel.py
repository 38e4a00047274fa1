"""DistributedDataParallel whose buckets lie in memory that the ranks of a host share, where reductions fold in place."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as _DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _core
from ._groups import core_of

# The size of the smallest tensor that is taken for a bucket, in bytes.
_SMALLEST = 4096


class DistributedDataParallel(_DistributedDataParallel):
    """PyTorch's, with the same arguments. PyTorch makes the buckets, first in the constructor, and anew in the forward pass behind the
    first backward pass; the memory that it asks for meanwhile is the library's. Under another backend it is PyTorch's own."""

    def __init__(self, module: torch.nn.Module, *args: Any, **options: Any) -> None:
        self.__dict__["_shared"] = _shared(options.get("process_group"))
        with self._shared or contextlib.nullcontext():
            super().__init__(module, *args, **options)

    def __getstate__(self) -> dict[str, Any]:
        # As in PyTorch, without the parts of this process's group.
        return super().__getstate__() | {"_shared": None}

    def _pre_forward(self, *inputs: Any, **options: Any) -> Any:
        if self._shared is None or getattr(self, "_has_rebuilt_buckets", True):
            return super()._pre_forward(*inputs, **options)
        with self._shared:
            return super()._pre_forward(*inputs, **options)


def _shared(group: dist.ProcessGroup | None) -> _SharedMemory | None:
    core = core_of(group)
    return None if core is None else _SharedMemory(core)


class _SharedMemory(TorchDispatchMode):
    """While it is entered, tensors that are made by `empty` as buckets are lie in memory that the ranks of the host share."""

    def __init__(self, core: _core.Group) -> None:
        super().__init__()
        self._core = core

    def __torch_dispatch__(self, call: Any, _: Any, args: Any = (), options: Any = None) -> Any:
        options = options or {}
        if call is torch.ops.aten.empty.memory_format:
            made = self._made(args[0], options.get("dtype"), options.get("device"))
            if made is not None:
                return made
        return call(*args, **options)

    def _made(self, shape: list[int], dtype: torch.dtype | None, device: torch.device | None) -> torch.Tensor | None:
        if len(shape) != 1 or dtype is None or not dtype.is_floating_point or device is not None and device.type != "cpu":
            return None
        size = shape[0] * torch.finfo(dtype).bits // 8
        return torch.frombuffer(self._core.alloc(size), dtype=dtype) if size >= _SMALLEST else None
