"""What a rank is about to do in a group, told to all its ranks before: so a rank that has joined knows what the others do.

Everything that Horovod's interface does in a group begins with such a turn, which is an all-gather of 32 bytes of each rank. Where what follows
needs all ranks, it is waited for; elsewhere what follows is started behind it at once.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator

from .._core import Work
from .._group import Group
from ..errors import ArgumentError, Deadline, Mismatch, PeerFailed, ShouterError

JOINED, NAMES, STEP, ORDER, REDUCE, CALL, REFUSED = range(7)
"""What follows: nothing, for this rank has joined (with the number of turns since then); a comparison of names (with a digest); a step of an
optimizer; the order of its gradients, behind its first step; an all-reduce without a name (with its elements, type and reduction); one of the
calls below (with its number, and what it needs); nothing, for this rank has refused what it was to take part in (the number of a call below)."""

CALLS = (
    "barrier",
    "allgather",
    "alltoall",
    "reducescatter",
    "broadcast",
    "broadcast_object",
    "allgather_object",
    "allreduce by min",
    "allreduce by max",
    "allreduce by prod",
    "allreduce of a sparse tensor",
    "add_process_set",
    "remove_process_set",
    "DistributedOptimizer",
    "grouped_allreduce",
    "allreduce",
    "broadcast_parameters",
)
"""Calls that wait for their turn, and then the others that may be refused."""

_LENGTH = 4

REDUCTIONS = ("sum", "avg")
"""Those of which zeroes change nothing but the mean, which is that of all ranks."""

DTYPES = (
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn float8_e5m2"
).split()
"""The types of elements, by their number in a turn."""


class Turn:
    """What every rank is about to do."""

    def __init__(self, work: Work, words: array[int]) -> None:
        self._work, self._words = work, words

    def wait(self) -> list[list[int]]:
        """The words of every rank, by rank; the first is one of the constants above."""
        self._work.wait()
        return [self._words[at : at + _LENGTH].tolist() for at in range(0, len(self._words), _LENGTH)]


def tell(group: Group, *words: int) -> Turn:
    """Starts to tell all ranks; nobody need wait for it."""
    own = array("q", [*words, *[0] * (_LENGTH - len(words))])
    everyone = array("q", bytes(8 * _LENGTH * group.size))
    return Turn(group.allgather_async(own, everyone), everyone)


@contextlib.contextmanager
def refusals(group: Group, call: str) -> Iterator[None]:
    """What is refused inside, before this rank's turn, fails on the other ranks at once, too."""
    try:
        yield
    except Exception:
        # Where the group has ended, they have heard of that.
        with contextlib.suppress(ShouterError):
            tell(group, REFUSED, CALLS.index(call))
        raise


def tell_reduction(group: Group, elements: int, dtype: str, op: str) -> Turn | None:
    """Begins an all-reduce without a name; the turn has to be looked at when it is waited for."""
    if op in REDUCTIONS:
        return tell(group, REDUCE, elements, DTYPES.index(dtype), REDUCTIONS.index(op))
    enter(group, f"allreduce by {op}")
    return None


def enter(group: Group, call: str, *words: int) -> list[list[int]]:
    """Begins what all ranks have to take part in, and returns the words of every rank; refuses it where ranks have joined."""
    told = _called(group, call, *words)
    if joined := joined_of(told):
        raise ArgumentError(f"{call}: {refusal(joined)}")
    return [row[2:] for row in told]


def barrier(group: Group) -> None:
    """Waits until all ranks have called it, but for those that have joined."""
    _called(group, "barrier")


def begin_group(group: Group) -> None:
    """Waits until all ranks begin all-reduces without names that belong together, but for those that have joined."""
    _called(group, "grouped_allreduce")


def _called(group: Group, call: str, *words: int) -> list[list[int]]:
    told = tell(group, CALL, CALLS.index(call), *words).wait()
    check_alike(told)
    return told


def check_refused(told: list[list[int]]) -> None:
    """Raises what another rank has refused."""
    for rank, (kind, number, *_) in enumerate(told):
        if kind == REFUSED:
            text = f"rank {rank} refuses its part in {CALLS[number]}; its own error says why"
            raise Mismatch(text, rank=rank, reason="diverged", theirs=f"refuses its part in {CALLS[number]}")


def check_alike(told: list[list[int]]) -> None:
    """Refuses, on every rank, that those which have not joined do different things."""
    check_refused(told)
    (least, first), *others = [(rank, _view(row)) for rank, row in enumerate(told) if row[0] != JOINED]
    for rank, theirs in others:
        if theirs != first:
            text = f"rank {rank} {theirs}, and rank {least} {first}; all ranks that have not joined have to do the same"
            raise Mismatch(text, rank=rank, reason="diverged", ours=first, theirs=theirs)


def _view(row: list[int]) -> str:
    """What a rank does that has not joined."""
    kind, number, *_ = row
    if kind == CALL:
        return f"calls {CALLS[number]}"
    return {NAMES: "waits for a name", STEP: "makes a step", ORDER: "ends its first step", REDUCE: "reduces without a name"}[kind]


def joined_of(told: list[list[int]]) -> list[int]:
    """The ranks that have joined."""
    return [rank for rank, (kind, *_) in enumerate(told) if kind == JOINED]


def refusal(joined: list[int]) -> str:
    """Why something is not done."""
    who = f"rank{'s' if len(joined) > 1 else ''} {', '.join(map(str, joined))} {'have' if len(joined) > 1 else 'has'} joined"
    return f"{who}; until all ranks have, only allreduce by Average or Sum of dense tensors, steps of optimizers and barrier go on"


def late_of(why: Deadline | PeerFailed) -> list[int]:
    """The ranks that did not come in time; raises another failure. A rank that comes late itself has PeerFailed."""
    if isinstance(why, PeerFailed) and why.reason != "late":
        raise why
    return why.missing or [rank for rank in [why.rank] if rank is not None]
