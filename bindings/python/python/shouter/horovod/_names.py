"""Operations with names: ranks submit them in any order.

They start when a rank waits for one: the ranks then compare what they have submitted, and what all have submitted is started, in the order of
the names. Usually that is the same on every rank, and they compare a digest. A rank takes part when it waits itself, so nobody is asked
while it computes; or all the time, when it has joined.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections.abc import Callable
from typing import Any, Protocol

from .._group import Group, Tensor
from ..errors import ArgumentError, Deadline, Mismatch, PeerFailed
from ._turns import NAMES, REDUCTIONS, check_alike, enter, late_of, refusal, tell


class Started(Protocol):
    """What has been started: one operation of the library, or several as one."""

    def done(self) -> bool: ...
    def wait(self) -> Any: ...


class Steps(Protocol):
    """An optimizer, whose steps others may make without this rank."""

    def check_join(self) -> None:
        """Refuses to join where it cannot stand in."""

    def begin_again(self) -> None:
        """The next backward pass is the first of a step."""

    def stand_in(self) -> None:
        """Takes part with zeroes in a step."""

    def agree(self) -> None:
        """Takes part in what follows the first step."""


class Operation:
    """A named operation, which `begin` starts."""

    def __init__(self, names: Names, tensor: Tensor, begin: Callable[[], Started]) -> None:
        self._names, self.tensor, self._begin = names, tensor, begin
        self._work: Started | None = None
        self._error: Exception | None = None

    def start(self) -> None:
        """Starts it; its error is that of its wait."""
        self._names.group.set_label(self.tensor.name)
        try:
            self._work = self._begin()
        except Exception as why:
            # PyTorch's own errors count, too: memory for a result, say.
            self._error = why
        finally:
            self._names.group.set_label("")

    def fail(self, why: Exception) -> None:
        """It will not be started."""
        self._error = why

    def is_settled(self) -> bool:
        """Whether it was started, or has failed."""
        return self._work is not None or self._error is not None

    def done(self) -> bool:
        """Whether it has ended; asked for the first time, it waits until all ranks have submitted it."""
        return self._met().done()

    def wait(self) -> None:
        """Waits for its end, and raises its error."""
        self._met().wait()

    def _met(self) -> Started:
        if not self.is_settled():
            self._names.meet(self)
        if self._error is not None:
            raise self._error
        assert self._work is not None
        return self._work


class Names:
    """What was submitted to a group under a name, and has not been started."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._submitted: dict[str, Operation] = {}
        # For each optimizer the group of its order, and what finds it, unless it was dropped.
        self._optimizers: list[tuple[Group, Callable[[], Steps | None]]] = []

    def group_of_optimizer(self) -> Group:
        """This group for the first optimizer, and for each other one a group of the same ranks, with an order of its own: gradients of two
        may come mixed. All ranks call it, and `add_optimizer` then.
        """
        enter(self.group, "DistributedOptimizer")
        if not self._optimizers:
            return self.group
        made = self.group.split(0, self.group.rank)
        assert made is not None
        return made

    def add_optimizer(self, group: Group, find: Callable[[], Steps | None]) -> None:
        """Makes an optimizer known to `orders`; `find` returns it, or None where it was dropped."""
        self._optimizers.append((group, find))

    def orders(self) -> list[tuple[Group, Callable[[], Steps | None]]]:
        """The groups with an order of their own, this one first, each with its optimizer."""
        return self._optimizers or [(self.group, lambda: None)]

    def check_join(self) -> None:
        """Refuses to join while anything is under way."""
        if self._submitted:
            names = ", ".join(f"'{name}'" for name in sorted(self._submitted)[:8])
            raise ArgumentError(f"join(): {names} {'were' if len(self._submitted) > 1 else 'was'} submitted, and not waited for; wait before")
        for _, find in self._optimizers:
            if (optimizer := find()) is not None:
                optimizer.check_join()

    def submit(self, tensor: Tensor, begin: Callable[[], Started]) -> Operation:
        """Keeps an operation until all ranks have submitted it."""
        if tensor.name in self._submitted:
            raise ArgumentError(f"'{tensor.name}' was submitted before, and has not been waited for; give each tensor a name of its own")
        operation = self._submitted[tensor.name] = Operation(self, tensor, begin)
        return operation

    def meet(self, operation: Operation) -> None:
        """Compares with the other ranks what was submitted, until all have submitted this one; it has been started then."""
        while not operation.is_settled():
            own = [self._submitted[name].tensor for name in sorted(self._submitted)]
            try:
                by_rank = self._of_all(own)
            except (Deadline, PeerFailed) as why:
                missing = late_of(why)
                names = ", ".join(f"'{tensor.name}'" for tensor in own[:8])
                late = ", ".join(f"rank {rank}" for rank in missing)
                text = f"{names} were submitted here, and {late} neither submitted all of them nor waited for another one: {why}"
                raise Deadline(text, missing=missing, operation=why.operation, tensor=operation.tensor.name, step=why.step) from None
            except Mismatch as why:
                self._fail(why)
                return
            self._start(by_rank)

    def _start(self, by_rank: list[dict[str, Tensor] | None]) -> None:
        """Starts what all ranks have submitted that have not joined."""
        try:
            common = agreed(by_rank)
        except (ArgumentError, Mismatch) as why:
            self._fail(why)
            return
        joined = [rank for rank, theirs in enumerate(by_rank) if theirs is None]
        for tensor in common:
            operation = self._submitted.pop(tensor.name)
            if joined and not can_join(tensor):
                operation.fail(ArgumentError(f"'{tensor.name}', {_view(tensor)}: {refusal(joined)}"))
            else:
                operation.start()

    def _fail(self, why: Exception) -> None:
        """Nothing that was submitted will be started, on any rank."""
        for operation in self._submitted.values():
            operation.fail(why)
        self._submitted.clear()

    def _of_all(self, own: list[Tensor]) -> list[dict[str, Tensor] | None]:
        """The submitted tensors of every rank, by name; none of a rank that has joined."""
        digest = hashlib.sha256(json.dumps(own).encode()).digest()[:7]
        told = tell(self.group, NAMES, int.from_bytes(digest, "little")).wait()
        if all(row == told[0] for row in told):
            return [{tensor.name: tensor for tensor in own}] * self.group.size
        check_alike(told)
        return gather_names(self.group, own)


def gather_names(group: Group, own: list[Tensor] | None) -> list[dict[str, Tensor] | None]:
    """What each rank has submitted, by name; None for one that has joined."""
    every = [json.loads(theirs) for theirs in gather_bytes(group, json.dumps(own).encode())]
    return [None if rows is None else {row[0]: Tensor(*row) for row in rows} for rows in every]


def agreed(by_rank: list[dict[str, Tensor] | None]) -> list[Tensor]:
    """What all ranks have submitted that have not joined, in its order; refuses it where there is nothing, or ranks differ."""
    present = {rank: theirs for rank, theirs in enumerate(by_rank) if theirs is not None}
    (least, first), *others = present.items()
    common = [tensor for name, tensor in first.items() if all(name in theirs for _, theirs in others)]
    if not common:
        raise ArgumentError(_stuck(present))
    for tensor in common:
        for rank, theirs in others:
            if theirs[tensor.name] != tensor:
                views = {"ours": _view(tensor), "theirs": _view(theirs[tensor.name])}
                text = f"'{tensor.name}': rank {rank} has {views['theirs']}, rank {least} has {views['ours']}; submit the same tensors on every rank"
                raise Mismatch(text, rank=rank, tensor=tensor.name, **views)
    return common


def can_join(tensor: Tensor) -> bool:
    """Whether a rank that has joined can take part in it with zeroes."""
    return tensor.kind == "allreduce" and tensor.op in REDUCTIONS


def gather_bytes(group: Group, own: bytes) -> list[bytes]:
    """The bytes of every rank, by rank."""
    lengths = array("q", bytes(8 * group.size))
    group.allgather(array("q", [len(own)]), lengths)
    everything = bytearray(sum(lengths))
    group.allgather(own, everything, counts=list(lengths))
    ends = itertools.accumulate(lengths)
    return [bytes(everything[end - length : end]) for end, length in zip(ends, lengths)]


def _view(tensor: Tensor) -> str:
    what = f"{tensor.kind} of {tensor.elements} x {tensor.dtype}"
    return f"{what} from rank {tensor.root}" if tensor.kind == "broadcast" else f"{what}, {tensor.op}"


def _stuck(by_rank: dict[int, dict[str, Tensor]]) -> str:
    """Which name each rank waits for in vain."""
    every = sorted(set().union(*by_rank.values()))
    lacking = []
    for name in every[:8]:
        without = [str(rank) for rank, own in by_rank.items() if name not in own]
        lacking.append(f"'{name}' was not submitted by rank{'s' if len(without) > 1 else ''} {', '.join(without)}")
    more = f", and {len(every) - 8} more names" if len(every) > 8 else ""
    return f"every rank waits, and no name was submitted by all: {'; '.join(lacking)}{more}; submit the same names on every rank"
