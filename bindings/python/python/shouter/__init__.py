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
import datetime
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _core, _ends, errors
from ._core import Work, __version__
from ._group import A, Group, Status, Tensor, _all
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

__all__ = [
    "AcceleratorError",
    "ArgumentError",
    "Closed",
    "ConfigError",
    "Deadline",
    "DeviceError",
    "Group",
    "InternalError",
    "JoinError",
    "Mismatch",
    "PeerFailed",
    "ShouterError",
    "Status",
    "Tensor",
    "Timeout",
    "Work",
    "WouldBlock",
    "__version__",
    "abort",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "barrier_async",
    "broadcast",
    "broadcast_async",
    "close",
    "dump",
    "empty",
    "errors",
    "exscan",
    "exscan_async",
    "gather",
    "gather_async",
    "group",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "push",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "register",
    "scan",
    "scan_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "sendrecv",
    "set_label",
    "set_step",
    "size",
    "split",
    "stats",
    "transport",
    "world",
    "write_timeline",
]

if TYPE_CHECKING:
    from pathlib import Path

_world: Group | None = None


def init(
    iplist: Sequence[str] | None = None,
    ports: Sequence[int] | int | None = None,
    channel_num: int | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    store: Any = None,
    timeout: float | datetime.timedelta | None = None,
    **settings: object,
) -> Group:
    """Joins the job, and returns the group of all its ranks when all have joined.

    Without arguments the launcher's environment gives this process's place. `iplist` and `ports` have an address and a TCP
    port for each rank instead. `store` is an object with `set(key, bytes)` and `get(key) -> bytes` that only the ranks
    share (torch's Store, for example): with it only `rank` and `size` are needed, because the address and the job's key go
    through it. `timeout` is the time limit for the other ranks, in seconds (60 unless set). `settings` are keys of the
    configuration, such as `transport="kernel"` or `deadline="90s"`, and override the environment.
    """
    global _world
    if is_initialized():
        raise ArgumentError("shouter.init was called before, and its group is not closed; call shouter.close first")
    if timeout is not None:
        if not isinstance(timeout, datetime.timedelta):
            timeout = datetime.timedelta(seconds=timeout)
        settings["rendezvous_deadline"] = timeout
    given: dict[str, object] = {"channel_num": channel_num, "rank": rank, "size": size, **settings}
    texts = [(key, _text(value)) for key, value in given.items() if value is not None]
    lists = None
    if iplist is not None:
        if ports is None:
            raise ArgumentError("iplist is given without ports; give one port for each address, or one for all")
        lists = ([str(address) for address in iplist], [ports] if isinstance(ports, int) else list(ports))
    elif ports is not None:
        raise ArgumentError("ports are given without iplist; give one address for each rank")
    core = _ends.joined(_core.join(texts, lists, store))
    core.use_in_programs()
    _reset_programs()
    _world = Group(core)
    return _world


def _text(value: object) -> str:
    """A value of the configuration as it is written in the environment."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, datetime.timedelta):
        return f"{max(1, round(value.total_seconds() * 1000))}ms"
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


def allreduce(array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> A:
    """See `Group.allreduce`."""
    return world().allreduce(array, op, out=out, dtype=dtype)


def allreduce_async(array: Any, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
    """See `Group.allreduce_async`."""
    return world().allreduce_async(array, op, out=out, dtype=dtype)


def broadcast(array: A, root: int = 0, *, dtype: str | None = None) -> Any:
    """See `Group.broadcast`."""
    return world().broadcast(array, root, dtype=dtype)


def broadcast_async(array: A, root: int = 0, *, dtype: str | None = None) -> Work:
    """See `Group.broadcast_async`."""
    return world().broadcast_async(array, root, dtype=dtype)


def reduce(array: Any, op: str = "sum", root: int = 0, *, out: Any = None, dtype: str | None = None) -> Any:
    """See `Group.reduce`."""
    return world().reduce(array, op, root, out=out, dtype=dtype)


def reduce_async(array: Any, op: str = "sum", root: int = 0, *, out: Any = None, dtype: str | None = None) -> Work:
    """See `Group.reduce_async`."""
    return world().reduce_async(array, op, root, out=out, dtype=dtype)


def allgather(array: Any, out: Any, *, counts: Sequence[int] | None = None, dtype: str | None = None) -> Any:
    """See `Group.allgather`."""
    return world().allgather(array, out, counts=counts, dtype=dtype)


def allgather_async(array: Any, out: Any, *, counts: Sequence[int] | None = None, dtype: str | None = None) -> Work:
    """See `Group.allgather_async`."""
    return world().allgather_async(array, out, counts=counts, dtype=dtype)


def gather(
    array: Any, out: Any = None, root: int = 0, *, counts: Sequence[int] | None = None, dtype: str | None = None
) -> Any:
    """See `Group.gather`."""
    return world().gather(array, out, root, counts=counts, dtype=dtype)


def gather_async(
    array: Any, out: Any = None, root: int = 0, *, counts: Sequence[int] | None = None, dtype: str | None = None
) -> Work:
    """See `Group.gather_async`."""
    return world().gather_async(array, out, root, counts=counts, dtype=dtype)


def scatter(
    array: Any, out: Any = None, root: int = 0, *, counts: Sequence[int] | None = None, dtype: str | None = None
) -> Any:
    """See `Group.scatter`."""
    return world().scatter(array, out, root, counts=counts, dtype=dtype)


def scatter_async(
    array: Any, out: Any = None, root: int = 0, *, counts: Sequence[int] | None = None, dtype: str | None = None
) -> Work:
    """See `Group.scatter_async`."""
    return world().scatter_async(array, out, root, counts=counts, dtype=dtype)


def reducescatter(
    array: Any, out: Any = None, op: str = "sum", *, counts: Sequence[int] | None = None, dtype: str | None = None
) -> Any:
    """See `Group.reducescatter`."""
    return world().reducescatter(array, out, op, counts=counts, dtype=dtype)


def reducescatter_async(
    array: Any, out: Any = None, op: str = "sum", *, counts: Sequence[int] | None = None, dtype: str | None = None
) -> Work:
    """See `Group.reducescatter_async`."""
    return world().reducescatter_async(array, out, op, counts=counts, dtype=dtype)


def alltoall(
    array: Any,
    out: Any = None,
    *,
    given: Sequence[int] | None = None,
    taken: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Any:
    """See `Group.alltoall`."""
    return world().alltoall(array, out, given=given, taken=taken, dtype=dtype)


def alltoall_async(
    array: Any,
    out: Any = None,
    *,
    given: Sequence[int] | None = None,
    taken: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Work:
    """See `Group.alltoall_async`."""
    return world().alltoall_async(array, out, given=given, taken=taken, dtype=dtype)


def scan(array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Any:
    """See `Group.scan`."""
    return world().scan(array, op, out=out, dtype=dtype)


def scan_async(array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
    """See `Group.scan_async`."""
    return world().scan_async(array, op, out=out, dtype=dtype)


def exscan(array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Any:
    """See `Group.exscan`."""
    return world().exscan(array, op, out=out, dtype=dtype)


def exscan_async(array: A, op: str = "sum", *, out: Any = None, dtype: str | None = None) -> Work:
    """See `Group.exscan_async`."""
    return world().exscan_async(array, op, out=out, dtype=dtype)


def barrier() -> None:
    """See `Group.barrier`."""
    world().barrier()


def barrier_async() -> Work:
    """See `Group.barrier_async`."""
    return world().barrier_async()


def send(array: Any, to: int, tag: int = 0, *, synchronous: bool = False, dtype: str | None = None) -> None:
    """See `Group.send`."""
    world().send(array, to, tag, synchronous=synchronous, dtype=dtype)


def recv(array: Any, source: int | None = None, tag: int | None = None, *, dtype: str | None = None) -> Status:
    """See `Group.recv`."""
    return world().recv(array, source, tag, dtype=dtype)


def sendrecv(
    array: Any,
    to: int,
    out: Any,
    source: int | None = None,
    tag: int = 0,
    *,
    receive_tag: int | None = None,
    dtype: str | None = None,
) -> Status:
    """See `Group.sendrecv`."""
    return world().sendrecv(array, to, out, source, tag, receive_tag=receive_tag, dtype=dtype)


def send_async(array: Any, to: int, tag: int = 0, *, synchronous: bool = False, dtype: str | None = None) -> Work:
    """See `Group.send_async`."""
    return world().send_async(array, to, tag, synchronous=synchronous, dtype=dtype)


def recv_async(array: Any, source: int | None = None, tag: int | None = None, *, dtype: str | None = None) -> Work:
    """See `Group.recv_async`."""
    return world().recv_async(array, source, tag, dtype=dtype)


def register(tensors: Iterable[Tensor]) -> list[int]:
    """See `Group.register`."""
    return world().register(tensors)


def push(tensor: int, array: Any, *, out: Any = None) -> Work:
    """See `Group.push`."""
    return world().push(tensor, array, out=out)


def set_step(step: int) -> None:
    """See `Group.set_step`."""
    world().set_step(step)


def set_label(label: str) -> None:
    """See `Group.set_label`."""
    world().set_label(label)


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """See `Group.empty`."""
    return world().empty(shape, dtype)


def stats() -> dict[str, int]:
    """See `Group.stats`."""
    return world().stats()


def transport() -> str:
    """See `Group.transport`."""
    return world().transport()


def dump() -> Path:
    """See `Group.dump`."""
    return world().dump()


def write_timeline(path: str | os.PathLike[str]) -> None:
    """See `Group.write_timeline`."""
    world().write_timeline(path)


def split(color: int | None, key: int = 0, *, deadline: float | None = None) -> Group | None:
    """See `Group.split`."""
    return world().split(color, key, deadline=deadline)


def group(ranks: Sequence[int], *, deadline: float | None = None) -> Group:
    """See `Group.group`."""
    return world().group(ranks, deadline=deadline)


def abort(text: str | None = None) -> None:
    """See `Group.abort`; `init` may be called again then."""
    global _world
    if text is not None and _world is not None:
        _world.abort(text)
    for made in list(_all):
        made.abort()
    _world = None
    _reset_programs()


def _reset_programs() -> None:
    """JAX's programs go on behind a failure, where JAX is in use."""
    programs = sys.modules.get("shouter.jax")
    if programs is not None:
        programs.reset()


def close() -> None:
    """See `Group.close`; `init` may be called again then."""
    global _world
    if _world is not None:
        _world.close()
        _world = None


@atexit.register
def _leave() -> None:
    """The interpreter ends: operations under way end, too, while their memory is there."""
    for made in list(_all):
        made.abort()


def _forget() -> None:
    """A forked child has none of its parent's groups: their methods raise `Closed` there. It may `init` for itself."""
    global _world
    _world = None
    _all.clear()
    _ends.forget()


os.register_at_fork(after_in_child=_forget)
