"""The job, its ranks, and sets of them."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Sequence

import shouter

from .._group import Group
from ..errors import ArgumentError
from ._absent import unsupported
from ._names import Names
from ._turns import enter


class ProcessSet:
    """Some ranks of the job, for calls that only they make. All ranks make a set known, by `init` or `add_process_set`."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = sorted({int(rank) for rank in ranks})
        self.process_set_id: int | None = None
        self._names: Names | None = None

    def included(self) -> bool:
        """Whether this rank is in it."""
        return self._names is not None

    def size(self) -> int:
        """The number of its ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """This rank's number in it."""
        return self._member().group.rank

    def _member(self) -> Names:
        if self._names is None:
            # A process that has not joined has no sets.
            world()
            if self.process_set_id is None:
                raise ArgumentError(f"{self} is not known; add it on every rank, by add_process_set or init(process_sets=...)")
            raise ArgumentError(f"rank {rank()} is not in {self}; only its ranks call this")
        return self._names

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks})"


global_process_set = ProcessSet([])
"""All ranks."""

_sets: dict[int, ProcessSet] = {}
_is_homogeneous = False


def init(comm: None = None, process_sets: Sequence[ProcessSet | Sequence[int]] | str | None = None) -> None:
    """Joins the job, as the launcher's environment says, unless `shouter.init` has; makes these sets known, none of them if it is "dynamic". A second call does
    nothing. `comm` is refused.
    """
    global _is_homogeneous
    unsupported("init", "leave it out, and make a process set of some of the job's ranks", comm=comm)
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ArgumentError(f"init: process_sets={process_sets!r}; give sets of ranks, or 'dynamic'")
        process_sets = None
    if is_initialized():
        return
    if os.environ.get("HOROVOD_TIMELINE"):
        warnings.warn("HOROVOD_TIMELINE is not read, and no timeline is written there; SHOUTER_TIMELINE=FOLDER records one", stacklevel=2)
    if not shouter.is_initialized():
        shouter.init()
    world = shouter.world()
    _sets.clear()
    global_process_set.ranks, global_process_set.process_set_id = list(range(world.size)), 0
    global_process_set._names = Names(world)
    _sets[0] = global_process_set
    counts = array("q", bytes(8 * world.size))
    world.allgather(array("q", [world.local_size]), counts)
    _is_homogeneous = len(set(counts)) == 1
    for process_set in process_sets or ():
        add_process_set(process_set)


def shutdown() -> None:
    """Leaves the job, together with all other ranks."""
    for process_set in _sets.values():
        process_set.process_set_id = process_set._names = None
    _sets.clear()
    if shouter.is_initialized():
        shouter.close()


def is_initialized() -> bool:
    """Whether `init` was called, and the job goes on."""
    # The job may have been left, and another one joined, without this module.
    return 0 in _sets and shouter.is_initialized() and global_process_set._member().group is shouter.world()


def world() -> Group:
    """The group of all ranks."""
    if not is_initialized():
        raise ArgumentError("this process has not joined the job; call hvd.init() first")
    return global_process_set._member().group


def rank() -> int:
    """This rank's number."""
    return world().rank


def size() -> int:
    """The number of ranks."""
    return world().size


def local_rank() -> int:
    """This rank's number on its host."""
    return world().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return world().local_size


def cross_rank() -> int:
    """The number of this rank's host."""
    return world().node


def cross_size() -> int:
    """The number of hosts."""
    return world().nodes


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set of ranks known. All ranks of the job call it with the same ranks."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    whole = world()
    if added.process_set_id is not None:
        raise ArgumentError(f"{added} was added before")
    ranks = added.ranks
    if not ranks or ranks[0] < 0 or ranks[-1] >= whole.size:
        raise ArgumentError(f"{added}: give ranks from 0 to {whole.size - 1}, at least one")
    if any(ranks == other.ranks for other in _sets.values()):
        raise ArgumentError(f"a set of the ranks {ranks} was added before; use that one")
    enter(whole, "add_process_set")
    group = whole.split(0 if whole.rank in ranks else None, whole.rank)
    added.process_set_id = max(_sets) + 1
    added._names = None if group is None else Names(group)
    _sets[added.process_set_id] = added
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forgets a set; all ranks of the job call it. False for one that is not known, and for that of all ranks."""
    number = process_set.process_set_id
    if not number or _sets.get(number) is not process_set:
        return False
    enter(world(), "remove_process_set")
    if process_set._names is not None:
        process_set._names.group.close()
    del _sets[number]
    process_set.process_set_id = process_set._names = None
    return True


def is_homogeneous() -> bool:
    """Whether every host has as many ranks."""
    return _is_homogeneous and is_initialized()
