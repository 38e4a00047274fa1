"""The backend as newer versions of PyTorch (2.14 is one) take it: an object for each kind of device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Backend as TorchBackend

from .. import _core
from . import _groups
from ._backend import Operations
from ._work import TorchWork, Work, behind

# C++ keeps only the C++ part of a backend; this keeps the Python part until the group is shut down.
_open: set[Backend] = set()


class Backend(Operations, TorchBackend):
    """The calls of one group for one kind of device."""

    def __init__(self, core: _core.Group, timeout: timedelta) -> None:
        TorchBackend.__init__(self, core.rank, core.size)
        self._open(core, timeout)
        _open.add(self)

    # Properties, not methods: C++ would call a method here again, without end.

    @property
    def supports_coalescing(self) -> bool:
        return True

    @property
    def supports_splitting(self) -> bool:
        return True

    @property
    def options(self) -> Any:
        return TorchBackend.Options("shouter", self._timeout)

    def split(self, store: Any, ranks: Sequence[int], opts: Any) -> Backend:
        return Backend(self._part(ranks, opts._timeout), opts._timeout)

    def shutdown(self) -> None:
        super().shutdown()
        _open.discard(self)

    def abort(self) -> None:
        super().abort()
        _open.discard(self)


def _create(options: Any, _: Any) -> Backend:
    return Backend(_groups.join(options), options.timeout)


# PyTorch wraps the result of a Python backend in a handle that passes on only `wait` and `get_future`.
_NOT_PASSED_ON = ("is_completed", "is_success", "exception", "result", "source_rank", "_source_rank")


def _pass_on(name: str) -> None:
    """Has a handle of PyTorch's answer by ours behind it, where there is one."""
    own = getattr(TorchWork, name)

    @functools.wraps(own)
    def answer(self: TorchWork) -> Any:
        work = None if isinstance(self, Work) else behind(self)
        return own(self) if work is None else getattr(work, name)()

    setattr(TorchWork, name, answer)


def register() -> None:
    """Tells PyTorch of the backend."""
    for name in _NOT_PASSED_ON:
        _pass_on(name)
    dist.Backend.register_backend("shouter", _create, extended_api=True, devices=["cpu", "cuda"])
