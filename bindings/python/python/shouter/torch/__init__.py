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
        "shouter.torch needs PyTorch 1.13, or 2.15 or newer; install it by `pip install torch`, or Debian's python3-torch", name="torch"
    ) from None

_dist = _torch.distributed
if not _dist.is_available():
    raise ImportError("this PyTorch was built without torch.distributed; install one that has it, as by `pip install torch`")

from ._groups import leave_all as _leave_all
from ._work import Closed, Deadline, Mismatch, PeerFailed, Timeout

if hasattr(_dist.distributed_c10d, "BackendConfig"):
    # A PyTorch whose C++ knows these calls accepts a Python subclass of Backend.
    if not hasattr(_torch._C._distributed_c10d.Backend, "all_gather_single"):
        raise ImportError(
            f"shouter.torch needs PyTorch 1.13, or 2.15 or newer: this one, {_torch.__version__}, does not take backends in Python; "
            "install a newer one, as by `pip install --upgrade torch`"
        )
    from ._version2 import register as _register
else:
    from ._version1 import register as _register

__all__ = ["Closed", "Deadline", "Mismatch", "PeerFailed", "Timeout"]

_register()
