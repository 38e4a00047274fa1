"""Horovod's interface for Keras 3: `import shouter.horovod.tensorflow.keras as hvd`, with `hvd.callbacks`."""

from .. import *  # noqa: F403
from .. import __all__ as _of_tensorflow
from . import callbacks

__all__ = [*_of_tensorflow, "callbacks"]
