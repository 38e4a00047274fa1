"""Types with fewer bytes, for what is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compressions(cast: Callable[[Any, Any], Any], has_fraction: Callable[[Any], bool], float16: Any, bfloat16: Any) -> Any:
    """Horovod's class Compression with the types of a framework, and its ways to cast a tensor and to know types of numbers with a fraction."""

    class Unchanged:
        """Sends tensors as they are."""

        dtype: Any = None

        @classmethod
        def type_of(cls, dtype: Any) -> Any:
            """The type that elements of a type are sent in."""
            return cls.dtype if cls.dtype is not None and has_fraction(dtype) else dtype

        @classmethod
        def compress(cls, tensor: Any) -> tuple[Any, Any]:
            """The tensor as it is sent, and the type that it had."""
            return cast(tensor, cls.type_of(tensor.dtype)), tensor.dtype

        @staticmethod
        def decompress(tensor: Any, context: Any) -> Any:
            """What came, in the type that it had."""
            return cast(tensor, context)

    class Float16(Unchanged):
        """Sends numbers with a fraction as float16: sums beyond 65,504 are infinite."""

        dtype = float16

    class Bfloat16(Unchanged):
        """Sends numbers with a fraction as bfloat16, which has float32's range."""

        dtype = bfloat16

    class Compression:
        """How gradients are sent. Sums are rounded to the type that is sent, where they are reduced."""

        none = Unchanged
        fp16 = Float16
        bf16 = Bfloat16

    return Compression
