"""Objects, pickled, from one rank to the others."""

from __future__ import annotations

import pickle
from array import array
from typing import Any

from ._job import ProcessSet
from ._names import gather_bytes
from ._turns import enter


def broadcast_by(process_set: ProcessSet, obj: Any, root_rank: int) -> Any:
    """The object of `root_rank`, on every rank."""
    group = process_set._member().group
    enter(group, "broadcast_object")
    is_root = group.rank == root_rank
    text = pickle.dumps(obj) if is_root else b""
    length = array("q", [len(text)])
    group.broadcast(length, root_rank)
    into = bytearray(text if is_root else length[0])
    group.broadcast(into, root_rank)
    return obj if is_root else pickle.loads(into)


def gather_by(process_set: ProcessSet, obj: Any) -> list[Any]:
    """The objects of all ranks, by rank."""
    group = process_set._member().group
    enter(group, "allgather_object")
    return [pickle.loads(theirs) for theirs in gather_bytes(group, pickle.dumps(obj))]
