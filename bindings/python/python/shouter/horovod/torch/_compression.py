"""Types with fewer bytes, for what is sent."""

from __future__ import annotations

import torch


class _None:
    """Sends tensors as they are."""

    dtype: torch.dtype | None = None

    @classmethod
    def type_of(cls, dtype: torch.dtype) -> torch.dtype:
        """The type that elements of a type are sent in."""
        return cls.dtype if cls.dtype is not None and dtype.is_floating_point else dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """The tensor as it is sent, and the type that it had."""
        return tensor.to(cls.type_of(tensor.dtype)), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.dtype) -> torch.Tensor:
        """What came, in the type that it had."""
        return tensor.to(context)


class _Fp16(_None):
    """Sends numbers with a fraction as float16: sums beyond 65,504 are infinite."""

    dtype = torch.float16


class _Bf16(_None):
    """Sends numbers with a fraction as bfloat16, which has float32's range."""

    dtype = torch.bfloat16


class Compression:
    """How gradients are sent. Sums are rounded to the type that is sent, where they are reduced."""

    none = _None
    fp16 = _Fp16
    bf16 = _Bf16
