"""The extension module. Use the package `shouter`."""

import os
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

__version__: str
xla_run: int

_Counts = tuple[Sequence[int] | None, Sequence[int] | None]

class Work:
    """An operation that was started. Its memory is in use until it has ended; where the handle is dropped before, the library keeps the
    arrays until then. It can be awaited in asyncio."""

    def wait(self, timeout: float | None = None) -> Any:
        """Waits until it has ended, and returns what the blocking call returns; raises how it has failed. `timeout` is in seconds: after
        `shouter.Timeout` it is still under way. Ctrl-C ends the wait, and the operation goes on."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def exception(self) -> BaseException | None:
        """The exception with which it has ended; None where it has ended well, and while it is under way."""

    def add_done_callback(self, callback: Callable[[Work], object]) -> None:
        """Has a thread of the library call `callback` with this handle when it has ended; soon, where it has."""

    def __await__(self) -> Generator[Any, None, Any]: ...

class Memory:
    @property
    def is_shared(self) -> bool: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Group:
    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    @property
    def is_closed(self) -> bool: ...
    def run(
        self,
        kind: str,
        input: Any = None,
        output: Any = None,
        op: str = "sum",
        root: int = 0,
        dtype: str | None = None,
        counts: _Counts = (None, None),
    ) -> None: ...
    def begin_run(
        self,
        kind: str,
        input: Any = None,
        output: Any = None,
        op: str = "sum",
        root: int = 0,
        dtype: str | None = None,
        counts: _Counts = (None, None),
        result: Any = None,
    ) -> Work: ...
    def start(
        self,
        kind: str,
        address_in: int = 0,
        bytes_in: int = 0,
        address_out: int = 0,
        bytes_out: int = 0,
        dtype: str = "uint8",
        op: str = "sum",
        root: int = 0,
        factor: float | None = None,
        counts: _Counts = (None, None),
        keep: object = None,
        stream: int | None = None,
        wait: bool = False,
    ) -> Work | None: ...
    def send(self, array: Any, to: int, tag: int = 0, dtype: str | None = None, synchronous: bool = False) -> Work: ...
    def recv(self, array: Any, source: int | None = None, tag: int | None = None, dtype: str | None = None) -> Work: ...
    def sendrecv(
        self,
        array: Any,
        to: int,
        into: Any,
        source: int | None = None,
        tag: int = 0,
        receive_tag: int | None = None,
        dtype: str | None = None,
    ) -> Work: ...
    def start_send(
        self,
        address: int,
        bytes: int,
        dtype: str,
        to: int,
        tag: int = 0,
        synchronous: bool = False,
        keep: object = None,
        stream: int | None = None,
    ) -> Work: ...
    def start_recv(
        self,
        address: int,
        bytes: int,
        dtype: str,
        source: int | None = None,
        tag: int | None = None,
        keep: object = None,
        stream: int | None = None,
    ) -> Work: ...
    @staticmethod
    def block(work: Work) -> Any: ...
    def register(
        self,
        tensors: Sequence[
            tuple[
                str,
                str,
                int | None,
                str,
                str,
                int,
                tuple[Sequence[int] | None, Sequence[int] | None, Sequence[int] | None],
            ]
        ],
    ) -> list[int]: ...
    def push(self, tensor: int, input: Any = None, output: Any = None, result: Any = None) -> Work: ...
    def set_step(self, step: int) -> None: ...
    def set_label(self, label: str) -> None: ...
    def job_rank(self, rank: int) -> int: ...
    def use_in_programs(self) -> None: ...
    def number(self) -> int: ...
    def rank0_addresses(self) -> list[str]: ...
    def transport(self) -> str: ...
    def stats(self) -> dict[str, int]: ...
    def write_timeline(self, path: str | os.PathLike[str]) -> None: ...
    def dump(self) -> Path: ...
    def split(self, color: int | None, key: int, deadline: float | None = None) -> Group | None: ...
    def group(self, ranks: Sequence[int], deadline: float | None = None) -> Group: ...
    def alloc(self, bytes: int) -> Memory: ...
    def close(self) -> None: ...
    def abort(self, why: str) -> None: ...
    def leave(self) -> None: ...

def check_type(dtype: str, op: str | None = None) -> None: ...
def join(
    settings: Sequence[tuple[str, str]],
    lists: tuple[Sequence[str], Sequence[int]] | None = None,
    store: object = None,
) -> Group: ...
