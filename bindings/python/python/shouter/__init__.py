"""Shouter keeps the replicas of a training job in step.

    import numpy, shouter
    shouter.init()
    gradient = numpy.ones(1000, numpy.float32) * shouter.rank()
    shouter.allreduce(gradient, "avg")
    shouter.close()

Run it by `python -m shouter run -n 4 train.py`. The functions here are those of the group that `init` makes: see `Group`.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from typing import Any

from . import _core, errors
from ._core import Work, __version__
from ._group import Group
from .errors import (
    AcceleratorError,
    ArgumentError,
    Closed,
    ConfigError,
    Deadline,
    DeviceError,
    InternalError,
    JoinError,
    Mismatch,
    PeerFailed,
    ShouterError,
    Timeout,
    WouldBlock,
)

_world: Group | None = None


def init(
    iplist: Sequence[str] | None = None,
    ports: Sequence[int] | int | None = None,
    channel_num: int | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    **settings: object,
) -> Group:
    """Joins the job, and returns the group of all its ranks when they are there.

    Without arguments the launcher's environment says who this process is. `iplist` and `ports` have an address and a TCP port for each
    rank instead. `settings` are keys of the configuration, such as `transport="kernel"` or `deadline="90s"`, and win over the environment.
    """
    global _world
    if _world is not None and not _world.closed:
        raise ArgumentError("shouter.init was called before, and its group is not closed; call shouter.close first")
    given: dict[str, object] = {"channel_num": channel_num, "rank": rank, "size": size, **settings}
    texts = [(key, _text(value)) for key, value in given.items() if value is not None]
    lists = None
    if iplist is not None:
        if ports is None:
            raise ArgumentError("iplist is given without ports; give one port for each address, or one for all")
        lists = ([str(address) for address in iplist], [ports] if isinstance(ports, int) else list(ports))
    elif ports is not None:
        raise ArgumentError("ports are given without iplist; give one address for each rank")
    _world = Group(_core.join(texts, lists))
    return _world


def _text(value: object) -> str:
    """A value of the configuration as it is written in the environment."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value)
    return str(value)


def world() -> Group:
    """The group of all ranks, which `init` has made."""
    if _world is None:
        raise Closed("there is no group; call shouter.init first")
    return _world


def is_initialized() -> bool:
    """Whether `init` has made a group that is not closed."""
    return _world is not None and not _world.closed


def rank() -> int:
    """This process's number in the job, from 0."""
    return world().rank


def size() -> int:
    """How many ranks the job has."""
    return world().size


def local_rank() -> int:
    """This process's number among the ranks of its host, from 0."""
    return world().local_rank


def local_size() -> int:
    """How many ranks this host has."""
    return world().local_size


def allreduce(array: Any, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Any:
    """See `Group.allreduce`."""
    return world().allreduce(array, op, out=out, dtype=dtype)


def allreduce_async(array: Any, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
    """See `Group.allreduce_async`."""
    return world().allreduce_async(array, op, out=out, dtype=dtype)


def barrier() -> None:
    """See `Group.barrier`."""
    world().barrier()


def barrier_async() -> Work:
    """See `Group.barrier_async`."""
    return world().barrier_async()


def close() -> None:
    """See `Group.close`; `init` may be called again then."""
    global _world
    if _world is not None:
        _world.close()
        _world = None


@atexit.register
def _leave() -> None:
    """The interpreter ends: operations under way end, too, while their memory is there."""
    if _world is not None:
        _world._core.leave()
