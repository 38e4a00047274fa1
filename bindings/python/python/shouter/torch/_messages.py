"""Sends and receives that are started: each is waited for by a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from .. import _core
from ..errors import ShouterError, Timeout


class Message:
    """A send or a receive under way."""

    def __init__(self, call: Callable[[], int | None]) -> None:
        self._call = call
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], object]] = []
        self._lock = threading.Lock()
        self.source: int | None = None

    def run(self) -> None:
        try:
            self.source = self._call()
        except BaseException as error:  # Whoever waits raises it.
            self._error = error
        with self._lock:
            self._ended.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def wait(self, timeout: float | None = None) -> None:
        if not self._ended.wait(timeout):
            raise Timeout(f"the message has not come or gone within {timeout:.3f} s; it is still under way: wait again", after=timeout)
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        return self._ended.is_set()

    def exception(self) -> BaseException | None:
        return self._error

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback(self)


class Messages:
    """The messages of a group: those of one peer, tag and direction in the order in which they were started."""

    def __init__(self, core: _core.Group) -> None:
        self._core = core
        self._lines: dict[Hashable, deque[Message]] = {}
        self._lock = threading.Lock()

    def send(self, array: Any, peer: int, tag: int, dtype: str) -> Message:
        return self._start(("to", peer, tag), lambda: self._core.send(array, peer, tag, dtype))

    def receive(self, array: Any, peer: int | None, tag: int, dtype: str, count: int) -> Message:
        def call() -> int:
            source, _, came = self._core.recv(array, peer, tag, dtype)
            if came != count:
                raise ShouterError(
                    f"recv: {came} elements came from rank {source} with tag {tag}, and the tensor has {count}; "
                    "give both ranks tensors of the same size",
                    rank=source,
                    reason="diverged",
                    operation="receive",
                )
            return source

        return self._start(("from", peer, tag), call)

    def _start(self, line: Hashable, call: Callable[[], int | None]) -> Message:
        message = Message(call)
        with self._lock:
            waiting = self._lines.get(line)
            if waiting is not None:
                waiting.append(message)
                return message
            self._lines[line] = deque([message])
        threading.Thread(target=self._serve, args=(line,), name="shouter-message", daemon=True).start()
        return message

    def _serve(self, line: Hashable) -> None:
        while True:
            with self._lock:
                waiting = self._lines[line]
                if not waiting:
                    del self._lines[line]
                    return
                message = waiting.popleft()
            message.run()
