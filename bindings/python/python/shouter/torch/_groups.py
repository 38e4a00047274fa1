"""How PyTorch's groups become the library's: the default one joins through the store, others are made of its ranks."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import _core, _ends
from ._work import raised
from .._group import Group
from ..errors import ArgumentError, ShouterError

# All live groups: when the interpreter ends, their operations end while the tensors still exist.
_alive: weakref.WeakSet[_core.Group] = weakref.WeakSet()
_world: weakref.ref[_core.Group] | None = None


def join(options: Any) -> _core.Group:
    """The library's group for a new one of PyTorch's, which `options` describe: of all ranks, or of those whose numbers in the job they have."""
    global _world
    timeout, ranks = options.timeout, options.global_ranks_in_group
    try:
        world = None if _world is None else _world()
        if ranks and world is not None and not world.is_closed and world.size == dist.get_world_size():
            # It needs no new connection; only the members call this.
            core = world.group(list(ranks), _deadline(timeout))
        else:
            core = _join_through(options.store, options.group_rank, options.group_size, timeout)
            if not ranks:
                _world = weakref.ref(core)
    except ShouterError as error:
        raise raised(error) from None
    _alive.add(core)
    return core


def seconds_of(timeout: timedelta) -> str:
    """A time that PyTorch gives, as a value of the configuration: at most a year."""
    return f"{round(min(max(1.0, timeout.total_seconds()), 365 * 86400.0))}s"


def _deadline(timeout: timedelta) -> float:
    """A time that PyTorch gives, in seconds; none is short."""
    return max(0.001, timeout.total_seconds())


def part(parent: _core.Group, ranks: Sequence[int], timeout: timedelta) -> _core.Group:
    """The group of some members of a group, by their numbers there."""
    try:
        core = parent.group(list(ranks), _deadline(timeout))
    except ShouterError as error:
        raise raised(error) from None
    _alive.add(core)
    return core


def _join_through(store: dist.Store, rank: int, size: int, timeout: timedelta) -> _core.Group:
    # A store outlives its groups: each group has its own keys, and ignores those of an earlier one.
    turn = store.add(f"shouter/turn/{rank}", 1)
    place = dist.PrefixStore(f"shouter/{turn}", store)
    seconds = seconds_of(timeout)
    settings = [("rank", str(rank)), ("size", str(size)), ("deadline", seconds), ("rendezvous_deadline", seconds)]
    return _ends.joined(_core.join(settings, None, place))


def core_of(group: dist.ProcessGroup | None) -> _core.Group | None:
    """The library's group behind one of PyTorch's for tensors of the CPU; None behind another backend's."""
    group = dist.group.WORLD if group is None else group
    if hasattr(group, "_get_backend"):
        try:
            group = group._get_backend(torch.device("cpu"))
        except RuntimeError:
            return None
    core = getattr(group, "core", None)
    return core if isinstance(core, _core.Group) else None


def _core_of(group: dist.ProcessGroup | None) -> _core.Group:
    if group is None and not dist.is_initialized():
        raise ArgumentError("there is no process group; call init_process_group first")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ArgumentError("this rank is no member of that process group")
    core = core_of(group)
    if core is None:
        raise ArgumentError("this process group has another backend than shouter for tensors of the CPU; give one that has it")
    return core


def group(process_group: dist.ProcessGroup | None = None) -> Group:
    """The library's group behind one of PyTorch's, the default one if none is given: for `stats`, `transport`, `dump`, `write_timeline`,
    `set_step`, `set_label`, and what PyTorch has no call for. Both are one group: what ends one ends the other.

    `ArgumentError` where the group's tensors of the CPU have another backend.
    """
    return Group(_core_of(process_group))


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """A tensor of zeroes in memory that the ranks of the host share, of PyTorch's default type if none is given; `size` as for `torch.empty`.
    Collectives of the group of all ranks reduce and move such tensors where they lie.

    `ArgumentError` where the group has another backend, or there is not so much memory.
    """
    core = _core_of(group)
    like = torch.empty(0, dtype=dtype)
    shape = torch.Size(size[0] if len(size) == 1 and not isinstance(size[0], int) else size)
    if any(length < 0 for length in shape):
        raise ArgumentError(f"a tensor of shape {tuple(shape)}; lengths are 0 or more")
    if shape.numel() == 0:
        return like.reshape(shape)
    try:
        return torch.frombuffer(core.alloc(shape.numel() * like.element_size()), dtype=like.dtype).reshape(shape)
    except ShouterError as error:
        raise raised(error) from None


@atexit.register
def leave_all() -> None:
    """Leaves all groups without waiting."""
    for core in list(_alive):
        core.leave()
