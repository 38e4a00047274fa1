"""Jobs of several ranks for the tests: each is a script that `shouter run` starts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "python"
# The program that starts the jobs.
PROGRAM = str(Path(os.environ.get("SHOUTER_BUILT", Path(__file__).parents[3] / "target" / "debug")) / "shouter")

# A rank that hangs prints where its threads are, before its job is given up.
HEAD = """
import faulthandler
faulthandler.dump_traceback_later(100)
import numpy as np
import shouter
from shouter.errors import *
"""

Job = Callable[..., subprocess.CompletedProcess[str]]


def environment(**extra: str) -> dict[str, str]:
    """This process's variables, without those of a job around it, and with the package of the tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOUTER_")}
    kept["PYTHONPATH"] = str(PACKAGE)
    kept["OPENBLAS_NUM_THREADS"] = "1"
    return kept | extra


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Runs a script in each of `ranks` processes, and returns how the job has ended; `ok` demands that it ended well."""

    def run(
        ranks: int, script: str, *, ok: bool = True, options: tuple[str, ...] = (), **extra: str
    ) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "rank.py"
        path.write_text(HEAD + textwrap.dedent(script))
        command = [PROGRAM, "run", "-n", str(ranks), *options, "--", sys.executable, str(path)]
        try:
            ended = subprocess.run(
                command,
                env=environment(SHOUTER_DUMP_FOLDER=str(tmp_path)) | extra,
                capture_output=True,
                text=True,
                timeout=120,
                cwd=tmp_path,
            )
        except subprocess.TimeoutExpired as late:
            said = b"".join(text for text in (late.stdout, late.stderr) if text).decode(errors="replace")
            raise AssertionError(f"the job was still running after 120 s; it had printed:\n{said}") from None
        assert not ok or ended.returncode == 0, ended.stdout + ended.stderr
        return ended

    return run
