"""Errors as exceptions with fields. The text names the rank, the failure and the remedy."""

from __future__ import annotations

from collections.abc import Sequence


class ShouterError(RuntimeError):
    """The base class of all errors. A field is None (or empty) if it does not apply."""

    rank: int | None
    """The rank that the error names, by its number in the group that was called."""
    reason: str | None
    """The cause: lost, aborted, late, diverged, protocol, accelerator, disconnected, stopped or unreachable."""
    missing: list[int]
    """The ranks that did not come in time, in order."""
    operation: str | None
    """The call that it is about, such as all_reduce."""
    tensor: str | None
    """The name of the registered tensor that it is about."""
    step: int | None
    """The trainer's step, as Group.set_step gave it."""
    after: float | None
    """Seconds that passed."""
    ours: str | None
    """If ranks disagree: the view of most ranks, or of this one."""
    theirs: str | None
    """If ranks disagree: the view of `rank`."""

    def __init__(
        self,
        text: str,
        *,
        rank: int | None = None,
        reason: str | None = None,
        missing: Sequence[int] = (),
        operation: str | None = None,
        tensor: str | None = None,
        step: int | None = None,
        after: float | None = None,
        ours: str | None = None,
        theirs: str | None = None,
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.reason = reason
        self.missing = list(missing)
        self.operation = operation
        self.tensor = tensor
        self.step = step
        self.after = after
        self.ours = ours
        self.theirs = theirs


class ConfigError(ShouterError, ValueError):
    """The configuration cannot be used; nothing was started."""


class JoinError(ShouterError, ConnectionError):
    """The ranks did not come together: `missing` did not come, or `rank` does not fit."""


class DeviceError(ShouterError, OSError):
    """A port, a link, a thread or memory could not be had."""


class ArgumentError(ShouterError, ValueError):
    """An argument cannot be used. Nothing was started, and the group goes on."""


class Mismatch(ShouterError):
    """Ranks disagree about an operation or a tensor; `ours` and `theirs` have both views. After an operation the group has ended."""


class PeerFailed(ShouterError, ConnectionError):
    """`rank` is gone, for `reason`. Every survivor names the same one. The group has ended."""


class Deadline(ShouterError, TimeoutError):
    """The operation's deadline passed, here or on another rank that waited for the same ones; it waited for the ranks `missing`."""


class Closed(ShouterError):
    """The group was closed, has ended before, or belongs to the process that this one was forked from."""


class Timeout(ShouterError, TimeoutError):
    """The caller's own timeout passed. The operation is still under way, and its memory in use: wait again."""


class AcceleratorError(ShouterError):
    """An accelerator cannot be used, or has failed."""


class WouldBlock(ShouterError, BlockingIOError):
    """As many operations are under way as can be; nothing was started."""


class InternalError(ShouterError):
    """A fault of the library; please report it."""
