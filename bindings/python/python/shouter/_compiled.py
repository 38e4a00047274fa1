"""C++ that is compiled at its first use, against the headers of an installed package, and kept in the user's cache."""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# The headers are the package's, and so are their warnings.
FLAGS = ("-O2", "-fPIC", "-shared", "-w")


def compiled(source: Path, name: str, version: str, flags: Sequence[str], libraries: Sequence[str] = ()) -> Path:
    """The shared library made of `source`, for the module `shouter.NAME` and this version of what it is compiled against.

    RuntimeError if there is no C++ compiler, or it does not compile the source.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    parts = (source.read_text(), version, platform.machine(), *FLAGS, *flags, *libraries, *compiler)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = _cache(name) / f"{name}-{key}.so"
    if path.exists():
        return path
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"shouter.{name} compiles {source.name} at its first use, and there is no C++ compiler {compiler[0]}: install one, as by `apt install g++`, "
            "or name one in CXX"
        )
    # Ranks of one host begin at the same time: each compiles to a name of its own, and the last one to rename it wins.
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        library = Path(own) / "made.so"
        command = [*compiler, *FLAGS, *flags, str(source), "-o", str(library), *libraries]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            says = "\n".join(ended.stderr.strip().splitlines()[-20:])
            raise RuntimeError(f"{source.name} of shouter.{name} was not compiled for {version}: {' '.join(command)}\n{says}")
        library.replace(path)
    return path


def _cache(name: str) -> Path:
    """A folder of this user's that no other can write to: code is loaded from there. Without one the library is compiled for this process alone."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shouter"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
        if facts.st_uid == os.geteuid() and not facts.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass
    folder = Path(tempfile.mkdtemp(prefix=f"shouter-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
