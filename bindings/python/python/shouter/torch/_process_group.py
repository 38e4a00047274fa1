"""The backend as older versions of PyTorch (2.11 is one) take it: a whole group in Python, for tensors of all devices."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import ProcessGroup as TorchProcessGroup
from torch.distributed.distributed_c10d import AllreduceOptions, ReduceScatterOptions

from .. import _core
from ..errors import ArgumentError
from . import _groups
from ._backend import Operations
from ._work import Work


class ProcessGroup(Operations, TorchProcessGroup):
    """The calls of one group."""

    def __init__(self, core: _core.Group, timeout: timedelta) -> None:
        TorchProcessGroup.__init__(self, core.rank, core.size)
        self._open(core, timeout)
        self._name = self._description = ""

    def allreduce(self, tensors: Any, opts: Any = None) -> Work | None:
        """Also as programs call a group itself: with a tensor, with a reduction, without options."""
        if not isinstance(opts, AllreduceOptions):
            options = AllreduceOptions()
            if opts is not None:
                options.reduceOp = opts
            opts = options
        return super().allreduce([tensors] if isinstance(tensors, torch.Tensor) else tensors, opts)

    # Older names of the same calls.

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work | None:
        return self.all_gather_single(output, given, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Work | None:
        return self.reduce_scatter_single(output, given, opts or ReduceScatterOptions())

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> Work | None:
        return self.all_to_all_single(output, given, output_splits, input_splits, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work | None:
        return self.all_gather_single_coalesced(outputs, inputs, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work | None:
        return self.reduce_scatter_single_coalesced(outputs, inputs, opts or ReduceScatterOptions())

    # PyTorch 2 keeps a group's name and description with its backends; C++ and Python ask under different names.

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    # What PyTorch 2 asks of a group about its backend for a device, and of that backend.

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")]

    def _get_backend(self, _: torch.device) -> ProcessGroup:
        return self

    def _start_coalescing(self, _: torch.device | None = None) -> None:
        self.start_coalescing()

    def _end_coalescing(self, _: torch.device | None = None) -> Work:
        return self.end_coalescing()

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return False

    def supports_tensor_alloc(self, _: torch.device) -> bool:
        return False

    def _stream(self, kept: object) -> int | None:
        """PyTorch gives such a group the tensors of all devices, whatever the job has asked for."""
        stream = super()._stream(kept)
        if stream is not None:
            world = getattr(distributed_c10d, "_world", None)
            wanted = getattr(world, "pg_backend_config", {}).get(self, "")
            others = [part for part in wanted.split(",") if part.startswith("cuda:") and part != "cuda:shouter"]
            if others:
                raise ArgumentError(
                    f"a tensor on a GPU, and this group was made with '{wanted}': PyTorch {torch.__version__} gives a group one backend where that is "
                    f"written in Python; make a group of its own for these tensors, as by dist.new_group(backend='{others[0][5:]}'), or a newer PyTorch"
                )
        return stream

    def __del__(self) -> None:
        # On 1.13 destroy_process_group only forgets the group.
        core = self.__dict__.get("core")
        if core is not None:
            core.leave()


def _create(options: Any, _: Any = None) -> ProcessGroup:
    return ProcessGroup(_groups.join(options), options.timeout)


def register() -> None:
    """Tells PyTorch of the backend."""
    devices = {"devices": ["cpu", "cuda"]} if hasattr(distributed_c10d, "BackendConfig") else {}
    dist.Backend.register_backend("shouter", _create, extended_api=True, **devices)
