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
        path.write_text("import numpy as np\nimport shouter\nfrom shouter.errors import *\n" + textwrap.dedent(script))
        command = [PROGRAM, "run", "-n", str(ranks), *options, "--", sys.executable, str(path)]
        ended = subprocess.run(
            command,
            env=environment(SHOUTER_DUMP_FOLDER=str(tmp_path)) | extra,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
        )
        assert not ok or ended.returncode == 0, ended.stdout + ended.stderr
        return ended

    return run
