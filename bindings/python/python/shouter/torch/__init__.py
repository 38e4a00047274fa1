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

from ._groups import leave_all as _leave_all
from ._work import Closed, Deadline, Mismatch, PeerFailed, Timeout

if hasattr(_dist.distributed_c10d, "BackendConfig"):
    from ._version2 import register as _register
else:
    from ._version1 import register as _register

__all__ = ["Closed", "Deadline", "Mismatch", "PeerFailed", "Timeout"]

_register()
