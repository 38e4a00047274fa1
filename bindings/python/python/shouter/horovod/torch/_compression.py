"""Horovod's class Compression for PyTorch."""

from __future__ import annotations

import torch

from .._compression import compressions

Compression = compressions(torch.Tensor.to, lambda dtype: dtype.is_floating_point, torch.float16, torch.bfloat16)
