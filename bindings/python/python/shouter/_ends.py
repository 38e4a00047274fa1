"""Sends the text of an uncaught Python exception to the other ranks of the job."""

from __future__ import annotations

import sys
import weakref
from types import TracebackType

from . import _core

# The groups that this process has joined, without groups of some of their ranks.
_jobs: weakref.WeakSet[_core.Group] = weakref.WeakSet()
_before = None


def joined(core: _core.Group) -> _core.Group:
    """From now on an uncaught exception ends the job of this group for all its ranks."""
    global _before
    _jobs.add(core)
    if _before is None:
        _before, sys.excepthook = sys.excepthook, _uncaught
    return core


def is_job(core: _core.Group) -> bool:
    """Whether it is the group of all ranks of a job."""
    return core in _jobs


def words(kind: type[BaseException], error: BaseException | None) -> str:
    """An exception as the last line of its traceback has it."""
    # Its import would take a tenth of that of the package.
    import traceback

    return traceback.format_exception_only(kind, error)[-1].strip()


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    for core in list(_jobs):
        try:
            core.abort(words(kind, error))
        except Exception as why:
            print(f"shouter: the other ranks were not told of this exception: {why}", file=sys.stderr)
    assert _before is not None
    _before(kind, error, trace)


def forget() -> None:
    """A forked child has none of its parent's."""
    _jobs.clear()
