"""Objects, pickled, from one rank to the others."""

from __future__ import annotations

import pickle
from array import array
from typing import Any

from ..errors import ArgumentError
from ._job import ProcessSet
from ._names import gather_bytes
from ._turns import enter, refusals


def broadcast_by(process_set: ProcessSet, obj: Any, root_rank: int) -> Any:
    """The object of `root_rank`, on every rank."""
    group = process_set._member().group
    is_root = group.rank == root_rank
    with refusals(group, "broadcast_object"):
        if not 0 <= root_rank < group.size:
            raise ArgumentError(f"broadcast_object: root_rank {root_rank}; ranks are 0 to {group.size - 1}")
        text = pickle.dumps(obj) if is_root else b""
    enter(group, "broadcast_object")
    length = array("q", [len(text)])
    group.broadcast(length, root_rank)
    into = bytearray(text if is_root else length[0])
    group.broadcast(into, root_rank)
    return obj if is_root else pickle.loads(into)


def gather_by(process_set: ProcessSet, obj: Any) -> list[Any]:
    """The objects of all ranks, by rank."""
    group = process_set._member().group
    with refusals(group, "allgather_object"):
        text = pickle.dumps(obj)
    enter(group, "allgather_object")
    return [pickle.loads(theirs) for theirs in gather_bytes(group, text)]
