"""Horovod's class Compression for TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from .._compression import compressions

# tf.cast returns a tensor of that type as it is.
Compression = compressions(tf.cast, lambda dtype: dtype.is_floating, tf.float16, tf.bfloat16)
