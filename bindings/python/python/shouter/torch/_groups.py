"""How PyTorch's groups become the library's: the default one joins through the store, others are made of its ranks."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from .. import _core, _ends
from ._work import raised
from ..errors import ShouterError

# All that are alive: when the interpreter ends, their operations end while the tensors are there.
_alive: weakref.WeakSet[_core.Group] = weakref.WeakSet()
_world: weakref.ref[_core.Group] | None = None


def join(store: dist.Store, rank: int, size: int, timeout: timedelta, ranks: Sequence[int]) -> _core.Group:
    """The library's group for a new one of PyTorch's: of all ranks, or of those whose numbers in the job are `ranks`."""
    global _world
    try:
        world = None if _world is None else _world()
        if ranks and world is not None and not world.is_closed and world.size == dist.get_world_size():
            # It costs no connection; only the members come here.
            core = world.group(list(ranks), _deadline(timeout))
        else:
            core = _join_through(store, rank, size, timeout)
            if not ranks:
                _world = weakref.ref(core)
    except ShouterError as error:
        raise raised(error) from None
    _alive.add(core)
    return core


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
    # A store outlives its groups: what an earlier one has left there is not for this one.
    turn = store.add(f"shouter/turn/{rank}", 1)
    place = dist.PrefixStore(f"shouter/{turn}", store)
    seconds = f"{max(1, round(timeout.total_seconds()))}s"
    settings = [("rank", str(rank)), ("size", str(size)), ("deadline", seconds), ("rendezvous_deadline", seconds)]
    return _ends.joined(_core.join(settings, None, place))


@atexit.register
def leave_all() -> None:
    """Leaves all groups without waiting."""
    for core in list(_alive):
        core.leave()
