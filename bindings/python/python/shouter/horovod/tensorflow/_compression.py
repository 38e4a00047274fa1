"""Types with fewer bytes, for what is sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class _None:
    """Sends tensors as they are."""

    dtype: tf.DType | None = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, tf.DType]:
        """The tensor as it is sent, and the type that it had."""
        is_cast = cls.dtype is not None and tensor.dtype.is_floating
        return tf.cast(tensor, cls.dtype) if is_cast else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: tf.DType) -> Any:
        """What came, in the type that it had."""
        return tf.cast(tensor, context) if tensor.dtype != context else tensor


class _Fp16(_None):
    """Sends numbers with a fraction as float16: sums beyond 65,504 are infinite."""

    dtype = tf.float16


class _Bf16(_None):
    """Sends numbers with a fraction as bfloat16, which has float32's range."""

    dtype = tf.bfloat16


class Compression:
    """How gradients are sent. Sums are rounded to the type that is sent, where they are reduced."""

    none = _None
    fp16 = _Fp16
    bf16 = _Bf16
