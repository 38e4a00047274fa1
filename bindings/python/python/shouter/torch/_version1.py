"""The backend as PyTorch 1.13 takes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroup as TorchProcessGroup
from torch.distributed.distributed_c10d import AllreduceOptions, ReduceScatterOptions

from .. import _core
from . import _groups
from ._backend import Operations
from ._work import Work


class ProcessGroup(Operations, TorchProcessGroup):
    """The calls of one group."""

    def __init__(self, core: _core.Group, timeout: timedelta) -> None:
        TorchProcessGroup.__init__(self, core.rank, core.size)
        self._open(core, timeout)

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

    def __del__(self) -> None:
        # destroy_process_group only forgets the group.
        core = self.__dict__.get("core")
        if core is not None:
            core.leave()


def _create(options: Any, _: Any = None) -> ProcessGroup:
    ranks = options.global_ranks_in_group
    core = _groups.join(options.store, options.group_rank, options.group_size, options.timeout, ranks)
    return ProcessGroup(core, options.timeout)


def register() -> None:
    """Tells PyTorch of the backend."""
    dist.Backend.register_backend("shouter", _create, extended_api=True)
