"""Horovod's interface for Keras 3: `import shouter.horovod.tensorflow.keras as hvd`, with `hvd.callbacks`."""

from ..._absent import absent
from .. import *  # noqa: F403
from .. import ABSENT, __all__ as _of_tensorflow
from . import callbacks
from ._functions import DistributedOptimizer, allgather, allreduce, broadcast, reducescatter  # noqa: F401

__getattr__ = absent(
    __name__,
    ABSENT
    | {
        "PartialDistributedOptimizer": "there are no layers of one rank alone; use DistributedOptimizer",
        "load_model": "keras.models.load_model loads an optimizer as what it was, which is wrapped again",
    },
)

__all__ = [*_of_tensorflow, "callbacks"]
