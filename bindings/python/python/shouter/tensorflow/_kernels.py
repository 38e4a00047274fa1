"""The operations as TensorFlow's own: compiled at their first use against the headers of the installed TensorFlow."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf

from .. import _compiled, _core

try:
    from tensorflow.python.framework import auto_control_deps as _order

    _UNORDERED = _order.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
except (ImportError, AttributeError) as why:
    raise ImportError(
        f"shouter.tensorflow was written for TensorFlow 2.21, and this is {tf.__version__} ({why}); install that, as by `pip install tensorflow-cpu==2.21.0`"
    ) from None

_SOURCE = Path(__file__).with_name("kernels.cc")
OPERATIONS = ("AllReduce", "Broadcast", "AllGather", "ReduceScatter", "AllToAll", "AllGatherV", "AllToAllV")

# A function's operations with effects run in its order, one after the other. These run as soon as their inputs are there.
_order.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = _UNORDERED | {f"Shouter{name}" for name in OPERATIONS}

_lock = threading.Lock()
_loaded: Any = None


@functools.cache
def has_cpus_only() -> bool:
    """Whether TensorFlow has no other devices than CPUs."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


def operations() -> Any:
    """The module with a function for each operation.

    RuntimeError if there is no C++ compiler, or it does not compile the kernels.
    """
    global _loaded
    if _loaded is not None:
        return _loaded
    with _lock:
        if _loaded is None:
            flags, libraries = tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()
            path = _compiled.compiled(_SOURCE, "tensorflow", f"TensorFlow {tf.__version__}", flags, libraries)
            # TensorFlow finds the operations that a library adds when it loads it first.
            loaded = tf.load_op_library(str(path))
            library = ctypes.CDLL(str(path))
            library.shouter_set_calls.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
            library.shouter_set_calls(_core.named_submit, _core.named_refusal)
            _loaded = loaded
        return _loaded
