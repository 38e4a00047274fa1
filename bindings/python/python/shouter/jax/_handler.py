"""The handler of XLA's custom calls: compiled at its first use against the headers of the installed jaxlib, and kept in the user's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax
import jaxlib

from .. import _core

TARGET = "shouter_collective"
_SOURCE = Path(__file__).with_name("handler.cc")
# The headers are jaxlib's, and so are their warnings.
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w")


@functools.cache
def register() -> None:
    """Makes the handler known to XLA, once for a process.

    RuntimeError if there is no C++ compiler, or it does not compile the handler.
    """
    library = ctypes.CDLL(str(_compiled()))
    library.shouter_set_run.argtypes = [ctypes.c_void_p]
    library.shouter_set_run(_core.xla_run)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.shouter_collective), platform="cpu")


def _compiled() -> Path:
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    parts = (_SOURCE.read_text(), jaxlib.__version__, *_FLAGS, *compiler)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shouter"
    path = folder / f"jax-{key}.so"
    if path.exists():
        return path
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"shouter.jax compiles its handler at its first use, and there is no C++ compiler {compiler[0]}: install one, as by `apt install g++`, "
            "or name one in CXX"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Ranks of one host begin at the same time: each compiles to a name of its own, and the last one to rename it wins.
    with tempfile.TemporaryDirectory(dir=folder) as own:
        made = Path(own) / "handler.so"
        command = [*compiler, *_FLAGS, f"-I{jax.ffi.include_dir()}", str(_SOURCE), "-o", str(made)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            says = "\n".join(ended.stderr.strip().splitlines()[-20:])
            raise RuntimeError(f"the handler of shouter.jax was not compiled for jaxlib {jaxlib.__version__}: {' '.join(command)}\n{says}")
        made.replace(path)
    return path
