"""`python -m shouter ...` is the program `shouter` that lies in the package; `python -m shouter run -n 4 train.py` runs train.py by this
interpreter."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program() -> str | None:
    """The program's path: the package's own; where there is none, as in a source tree, the one in PATH."""
    own = Path(__file__).with_name("bin") / "shouter"
    if own.is_file():
        return str(own)
    found = shutil.which("shouter")
    # A script of that name is this module.
    is_program = found is not None and Path(found).read_bytes()[:4] == b"\x7fELF"
    return found if is_program else None


def arguments(given: list[str]) -> list[str]:
    """What the program gets: a script of Python's is run by this interpreter."""
    if given[:1] != ["run"]:
        return given
    at = (
        given.index("--") + 1
        if "--" in given
        else next((i for i, word in enumerate(given) if word.endswith(".py")), len(given))
    )
    if at == len(given) or not given[at].endswith(".py"):
        return given
    options = given[:at] if "--" in given[:at] else [*given[:at], "--"]
    return [*options, sys.executable, *given[at:]]


def main() -> None:
    path = program()
    if path is None:
        sys.exit("shouter: the program is neither in this package nor in PATH; install the wheel, or build shouter-cli")
    os.execv(path, [path, *arguments(sys.argv[1:])])


if __name__ == "__main__":
    main()
