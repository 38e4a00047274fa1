"""Operations under way, as PyTorch sees them, and what they raise."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Work as TorchWork
from torch.futures import Future

from .. import errors
from ._tensors import VERSION

# Newer versions of PyTorch have a class for the errors of backends.
_BackendError: type[RuntimeError] = getattr(dist, "DistBackendError", RuntimeError)


class PeerFailed(errors.PeerFailed, _BackendError):
    """`shouter.PeerFailed`, for those who catch PyTorch's error, too."""


class Mismatch(errors.Mismatch, _BackendError):
    """`shouter.Mismatch`, for those who catch PyTorch's error, too."""


class Deadline(errors.Deadline, _BackendError):
    """`shouter.Deadline`, for those who catch PyTorch's error, too."""


class Closed(errors.Closed, _BackendError):
    """`shouter.Closed`, for those who catch PyTorch's error, too."""


class Timeout(errors.Timeout, _BackendError):
    """`shouter.Timeout`, for those who catch PyTorch's error, too."""


_RAISED = {kind.__bases__[0]: kind for kind in (PeerFailed, Mismatch, Deadline, Closed, Timeout)}


def raised(error: BaseException) -> BaseException:
    """The error as it is raised to a program that uses PyTorch: an instance of PyTorch's class, too."""
    kind = _RAISED.get(type(error))
    if kind is None:
        return error
    # Programs for PyTorch's backends search for this text.
    late = "shouter: Timed out waiting: " if isinstance(error, TimeoutError) else ""
    other = kind(f"{late}{error}")
    other.__dict__.update(error.__dict__)
    return other


class Handle(Protocol):
    """An operation of the library."""

    def wait(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...
    def exception(self) -> BaseException | None: ...
    def add_done_callback(self, callback: Callable[[Any], object]) -> None: ...


class _Done:
    """The handle of an operation that its start has waited for."""

    def wait(self, timeout: float | None = None) -> None:
        pass

    def done(self) -> bool:
        return True

    def exception(self) -> None:
        pass

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        callback(self)


DONE = _Done()


class Flight:
    """Operations that are one call of PyTorch's, and what is left to do when they have ended: copies to tensors with gaps, say."""

    def __init__(self, handles: Sequence[Handle], outputs: list[torch.Tensor], finish: Callable[[], None] | None = None) -> None:
        self.handles = handles
        self.outputs = outputs
        self._finish = finish
        self._unfinished: BaseException | None = None
        self._lock = threading.Lock()

    def done(self) -> bool:
        # Each call asks; `all` with a generator takes twice as long.
        for handle in self.handles:  # noqa: SIM110
            if not handle.done():
                return False
        return True

    def error(self) -> BaseException | None:
        """How it has failed, if it has."""
        found = (handle.exception() for handle in self.handles)
        return next((raised(error) for error in found if error is not None), self._unfinished)

    def wait(self, seconds: float | None) -> None:
        """Waits for its end, and does what is left to do; raises how it has failed."""
        until = None if seconds is None else monotonic() + seconds
        try:
            for handle in self.handles:
                handle.wait(None if until is None else max(0.0, until - monotonic()))
        except errors.ShouterError as error:
            raise raised(error) from None
        self.complete()

    def complete(self) -> None:
        """Does the remaining work, once; raises its error each time."""
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                try:
                    finish()
                except Exception as why:
                    self._unfinished = why
        if self._unfinished is not None:
            raise self._unfinished

    def when_done(self, callback: Callable[[], None]) -> None:
        """Has a thread call this when all have ended."""
        left = len(self.handles)
        if left == 0:
            callback()
            return
        lock = threading.Lock()

        def ended(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = left == 0
            if is_last:
                callback()

        for handle in self.handles:
            handle.add_done_callback(ended)


# Whether this thread runs the callbacks of one of our futures: the same thread reports every end.
_telling = threading.local()


# Whether this thread looks for our handle behind one of PyTorch's.
_asking = threading.local()


class _Found(Exception):
    """The answer."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work


def behind(holder: TorchWork) -> Work | None:
    """Our handle behind one of PyTorch's, if it is ours. PyTorch 2 passes on nothing but `wait` and `get_future`."""
    _asking.now = True
    try:
        holder.get_future()
    except _Found as found:
        return found.work
    except RuntimeError:
        # The handle is another backend's, and has no future.
        pass
    finally:
        _asking.now = False
    return None


# Older versions of PyTorch (1.13, 2.4) keep only the C++ part of a Work, not the Python part: these are in progress, or were recently.
_KEEPS = VERSION >= (2, 7)
_recent: deque[Work] = deque()
_RECENT = 16
_recent_lock = threading.Lock()


def _keep(work: Work) -> None:
    with _recent_lock:
        _recent.append(work)
        while len(_recent) > _RECENT and _recent[0].flight.done():
            _recent.popleft()


class Work(TorchWork):
    """An operation that was started."""

    def __init__(self, flight: Flight, limit: float | None) -> None:
        super().__init__()
        self.flight = flight
        self._limit = limit
        self._future: Future[list[torch.Tensor]] | None = None
        if not _KEEPS:
            _keep(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end, and raises how it has failed. A time of zero is none."""
        self.flight.wait(timeout.total_seconds() or self._limit)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self.flight.done():
            return False
        if self.flight.error() is None:
            with contextlib.suppress(Exception):
                # `error` has the exception from now on.
                self.flight.complete()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.flight.error() is None

    def exception(self) -> BaseException | None:
        return self.flight.error()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self.flight.outputs

    def source_rank(self) -> int:
        """The sender of a received message."""
        self.wait()
        return int(self.flight.handles[0].wait(0).source)

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future of the tensors. It is set by a thread of the library, so DistributedDataParallel's C++ can wait for it."""
        if getattr(_asking, "now", False):
            raise _Found(self)
        if self._future is None:
            flight = self.flight
            # A future that gives GPU tensors must know their devices; `then` passes them on.
            devices = sorted({str(tensor.device) for tensor in flight.outputs if tensor.is_cuda})
            ended: Future[None] = Future(devices=devices)

            def outcome(_: object) -> list[torch.Tensor]:
                error = flight.error()
                if error is not None:
                    raise error
                flight.complete()
                return flight.outputs

            # An error raised by a callback is an error for C++ too; the one of set_exception is only a value there.
            self._future = ended.then(outcome)

            def tell() -> None:
                before, _telling.now = getattr(_telling, "now", False), True
                try:
                    ended.set_result(None)
                finally:
                    _telling.now = before

            if getattr(_telling, "now", False):
                # Hooks such as PowerSGD's wait for a future in another one's callback: no other thread would report the end.
                try:
                    flight.wait(self._limit)
                except errors.Timeout:
                    flight.when_done(tell)
                    return self._future
                except Exception:
                    # `outcome` raises it.
                    pass
                tell()
            else:
                flight.when_done(tell)
        return self._future
