"""The end of a rank's data: it takes part with zeroes in what the others reduce, until all have joined."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .._group import Group
from ..errors import ArgumentError, Deadline, Mismatch, PeerFailed
from ._job import ProcessSet, global_process_set
from ._names import Names, Started, Steps, agreed, can_join, gather_names
from ._turns import DTYPES, JOINED, NAMES, ORDER, REDUCE, REDUCTIONS, REFUSED, STEP, check_alike, late_of, tell

# Starts an all-reduce of zeroes in a group: the number of elements, their type, the reduction.
Zeroes = Callable[[Group, int, str, str], Started]


def check_set(process_set: ProcessSet) -> None:
    """Refuses to join another set than that of all ranks."""
    if process_set is not global_process_set:
        raise ArgumentError(
            f"join: process_set={process_set!r} is not supported; call join() without it: all ranks of the job join, as in Horovod, and the operations of "
            "other sets that have the rank as a member wait for it"
        )


def join(names: Names, zeroes: Zeroes) -> int:
    """Takes part in all that the others reduce until every rank has joined; returns the rank that was the last.

    A group of an optimizer has an order of its own, so each has a thread.
    """
    names.check_join()
    first, *others = names.orders()
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        started = [pool.submit(_stay, *other, zeroes) for other in others]
        ages = [_stay(*first, zeroes), *(other.result() for other in started)]
    # The last to join has the least turns behind it, in every group.
    turns = [sum(of_rank) for of_rank in zip(*ages)]
    return max(rank for rank, age in enumerate(turns) if age == min(turns))


def _stay(group: Group, steps: Callable[[], Steps | None], zeroes: Zeroes) -> list[int]:
    """Takes part in one group; returns for each rank how many turns there were since it joined."""
    if (own := steps()) is not None:
        own.begin_again()
    age = 0
    while True:
        told = _told(group, age)
        goes_on = [row for row in told if row[0] != JOINED]
        if not goes_on:
            return [row[1] for row in told]
        age += 1
        if any(kind == REFUSED for kind, *_ in goes_on):
            # That is an error of those that would have taken part.
            continue
        check_alike(told)
        kind, elements, dtype, op = goes_on[0]
        if kind in (STEP, ORDER):
            if (own := steps()) is None:
                raise ArgumentError(f"join: rank {group.rank} has dropped an optimizer of which others make a step; keep it until join returns")
            if kind == STEP:
                own.stand_in()
            else:
                own.agree()
        elif kind == REDUCE:
            zeroes(group, elements, DTYPES[dtype], REDUCTIONS[op]).wait()
        elif kind == NAMES:
            _stand_in(group, zeroes)
        # All else is refused by those that have called it.


def _stand_in(group: Group, zeroes: Zeroes) -> None:
    """Takes part in what the others have submitted under names."""
    by_rank = gather_names(group, None)
    try:
        common = agreed(by_rank)
    except (ArgumentError, Mismatch):
        # That is an error of those that have submitted something.
        return
    for work in [zeroes(group, tensor.elements or 0, tensor.dtype, tensor.op) for tensor in common if can_join(tensor)]:
        work.wait()


def _told(group: Group, age: int) -> list[list[int]]:
    """The next turn."""
    try:
        return tell(group, JOINED, age).wait()
    except (Deadline, PeerFailed) as why:
        raise late(group, why) from None


def late(group: Group, why: Deadline | PeerFailed) -> Deadline:
    """The error of a rank that has joined, and whose wait for others was too long; raises another failure."""
    missing = late_of(why)
    ranks = ", ".join(f"rank {rank}" for rank in missing)
    text = f"join: rank {group.rank} has joined, and {ranks} neither joined nor reduced anything: {why}"
    return Deadline(text, missing=missing, operation=why.operation, step=why.step)
