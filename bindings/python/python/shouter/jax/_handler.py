"""The handler of XLA's custom calls: compiled at its first use against the headers of the installed jaxlib, and kept in the user's cache."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import jax
import jaxlib

from .. import _core

TARGET = "shouter_collective"
_SOURCE = Path(__file__).with_name("handler.cc")
# The headers are jaxlib's, and so are their warnings.
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w")


_lock = threading.Lock()
_library: ctypes.CDLL | None = None


def register() -> None:
    """Makes the handler known to XLA, once for a process.

    RuntimeError if there is no C++ compiler, or it does not compile the handler.
    """
    global _library
    with _lock:
        if _library is not None:
            return
        library = ctypes.CDLL(str(_compiled()))
        library.shouter_set_run.argtypes = [ctypes.c_void_p]
        library.shouter_set_run(_core.xla_run)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.shouter_collective), platform="cpu")
        _library = library


def _compiled() -> Path:
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    parts = (_SOURCE.read_text(), jaxlib.__version__, platform.machine(), *_FLAGS, *compiler)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = _cache() / f"jax-{key}.so"
    if path.exists():
        return path
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"shouter.jax compiles its handler at its first use, and there is no C++ compiler {compiler[0]}: install one, as by `apt install g++`, "
            "or name one in CXX"
        )
    # Ranks of one host begin at the same time: each compiles to a name of its own, and the last one to rename it wins.
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        library = Path(own) / "handler.so"
        command = [*compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o", str(library)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            says = "\n".join(ended.stderr.strip().splitlines()[-20:])
            raise RuntimeError(f"the handler of shouter.jax was not compiled for jaxlib {jaxlib.__version__}: {' '.join(command)}\n{says}")
        library.replace(path)
    return path


def _cache() -> Path:
    """A folder of this user's that no other can write to: code is loaded from there. Without one the library is compiled for this process alone."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shouter"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
        if facts.st_uid == os.geteuid() and not facts.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    folder = Path(tempfile.mkdtemp(prefix="shouter-jax-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
