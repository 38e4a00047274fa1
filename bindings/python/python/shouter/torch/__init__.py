"""Shouter as a backend of PyTorch's distributed package.

    import shouter.torch
    torch.distributed.init_process_group("shouter")

The rest of a program stays as it is. docs/pytorch.md says what each call does, and what PyTorch does not let a backend do.
"""

from __future__ import annotations

try:
    import torch as _torch
except ModuleNotFoundError as why:
    if why.name != "torch":
        raise
    raise ModuleNotFoundError(
        "shouter.torch needs PyTorch 1.13 or newer; install it by `pip install torch`, or Debian's python3-torch", name="torch"
    ) from None

_dist = _torch.distributed
if not _dist.is_available():
    raise ImportError("this PyTorch was built without torch.distributed; install one that has it, as by `pip install torch`")

from . import _rendezvous
from ._groups import empty, group
from ._groups import leave_all as _leave_all
from ._tensors import VERSION as _VERSION
from ._work import Closed, Deadline, Mismatch, PeerFailed, Timeout

if _VERSION < (1, 13):
    raise ImportError(f"shouter.torch needs PyTorch 1.13 or newer, and this is {_torch.__version__}; install a newer one, as by `pip install --upgrade torch`")
if hasattr(getattr(_torch._C._distributed_c10d, "Backend", None), "all_gather_single"):
    # A PyTorch whose C++ knows these calls accepts a Python subclass of Backend.
    from ._device_backend import register as _register
else:
    from ._process_group import register as _register

__all__ = ["Closed", "Deadline", "Mismatch", "PeerFailed", "Timeout", "empty", "group"]

_register()
_rendezvous.register()
