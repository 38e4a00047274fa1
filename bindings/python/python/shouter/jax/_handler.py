"""The handler of XLA's custom calls: compiled at its first use against the headers of the installed jaxlib."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import jax
import jaxlib

from .. import _compiled, _core

TARGET = "shouter_collective"
_SOURCE = Path(__file__).with_name("handler.cc")

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def flags() -> list[str]:
    """What a handler is compiled with."""
    return ["-std=c++17", f"-I{jax.ffi.include_dir()}"]


def register() -> None:
    """Makes the handler known to XLA, once for a process.

    RuntimeError if there is no C++ compiler, or it does not compile the handler.
    """
    global _library
    with _lock:
        if _library is not None:
            return
        library = ctypes.CDLL(str(_compiled.compiled(_SOURCE, "jax", f"jaxlib {jaxlib.__version__}", flags())))
        library.shouter_set_run.argtypes = [ctypes.c_void_p]
        library.shouter_set_run(_core.xla_run)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.shouter_collective), platform="cpu")
        _library = library
