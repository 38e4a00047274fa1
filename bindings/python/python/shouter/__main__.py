"""`python -m shouter ...` is the program `shouter` that lies in the package; `python -m shouter run -n 4 train.py` runs train.py by this
interpreter. Under torchrun `python -m shouter check` gets the job's key as a trainer does: through torch's store."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from pathlib import Path

# The time limit for the ranks to reach the store, in seconds.
_MEETING = 60


def program() -> str | None:
    """The program's path: the package's own; where there is none, as in a source tree, the one in PATH."""
    own = Path(__file__).with_name("bin") / "shouter"
    if own.is_file():
        return str(own)
    found = shutil.which("shouter")
    # A script of that name is this module, not the program.
    is_program = found is not None and Path(found).read_bytes()[:4] == b"\x7fELF"
    return found if is_program else None


def arguments(given: list[str]) -> list[str]:
    """What the program gets: a script of Python's is run by this interpreter."""
    if given[:1] != ["run"]:
        return given
    # The first of both: what follows a script is the script's, another "--" too.
    at = next((i for i, word in enumerate(given) if word == "--" or word.endswith(".py")), len(given))
    options, command = given[:at], given[at:]
    if command[:1] == ["--"]:
        command = command[1:]
    if not command or not command[0].endswith(".py"):
        return given
    return [*options, "--", sys.executable, *command]


def key_through_store() -> None:
    """Gives a rank that torchrun has started a key, where it has none: rank 0 makes one, and torch's store, which all of them reach, has
    it until all have read it."""
    torchrun = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    given = ("SHOUTER_KEY", "SHOUTER_KEY_FILE", "SHOUTER_CONFIG")
    if not all(name in os.environ for name in torchrun) or any(name in os.environ for name in given):
        return
    try:
        from torch.distributed.rendezvous import rendezvous
    except ImportError:
        # The program reports the missing settings.
        return
    store, rank, size = next(rendezvous("env://"))
    if rank == 0:
        store.set("shouter/check/key", secrets.token_hex(32))
    os.environ["SHOUTER_KEY"] = store.get("shouter/check/key").decode()
    store.add("shouter/check/read", 1)
    until = time.monotonic() + _MEETING
    # The store may run in rank 0, whose process the program is about to replace.
    while rank == 0 and store.add("shouter/check/read", 0) < size:
        if time.monotonic() > until:
            sys.exit(f"shouter: not all {size} ranks have come to torch's store within {_MEETING} s; look at their logs")
        time.sleep(0.01)
    if rank == 0:
        store.set("shouter/check/key", "-")


def main() -> None:
    path = program()
    if path is None:
        sys.exit("shouter: the program is neither in this package nor in PATH; install the wheel, or build shouter-cli")
    if sys.argv[1:2] == ["check"]:
        key_through_store()
    os.execv(path, [path, *arguments(sys.argv[1:])])


if __name__ == "__main__":
    main()
