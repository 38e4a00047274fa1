"""What Horovod has and is not here: names of modules, and arguments. It is refused by its name, with what to do instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError

GROUPS = "the key fuse_below says which tensors are sent together"
"""In the place of groups of gradients."""

_QUESTIONS = "leave the question out: there is neither MPI nor Gloo nor NCCL"

OF_ALL = {
    "elastic": "a launcher such as torchrun starts the job again, from a checkpoint",
    "start_timeline": "the key timeline (SHOUTER_TIMELINE) writes timelines",
    "stop_timeline": "the key timeline (SHOUTER_TIMELINE) writes timelines",
    "grouped_allgather": "call allgather for each tensor",
    "grouped_reducescatter": "call reducescatter for each tensor",
    "mpi_threads_supported": _QUESTIONS,
} | {f"{library}_built": _QUESTIONS for library in ("mpi", "gloo", "nccl", "ddl", "ccl", "cuda", "rocm")} | {
    f"{library}_enabled": _QUESTIONS for library in ("mpi", "gloo")
}  # fmt: skip
"""The names of every framework's module."""


def absent(module: str, names: dict[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, which says of these names what to do."""

    def find(name: str) -> Any:
        if (instead := names.get(name)) is not None:
            raise AttributeError(f"{module}.{name} is not there; {instead}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


def unsupported(call: str, instead: str, **given: Any) -> None:
    """Refuses arguments that are given, where `instead` says what to do."""
    for name, value in given.items():
        if value:
            raise ArgumentError(f"{call}: {name}={value!r} is not supported; {instead}")


def without_effect(call: str, why: str, **given: Any) -> None:
    """Warns of arguments that are given and that say only how fast it is, where `why` says what counts instead."""
    for name, value in given.items():
        if value:
            warnings.warn(f"{call}: {name}={value!r} has no effect: {why}", stacklevel=3)


def only_cpus(call: str, **given: str) -> None:
    """Warns of names of devices but for CPUs."""
    without_effect(call, "all runs on the CPU", **{name: device for name, device in given.items() if "cpu" not in device.lower()})
