"""`python -m shouter`: the program in the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE, PROGRAM, environment

sys.path.insert(0, str(PACKAGE))
from shouter.__main__ import arguments

ME = sys.executable


@pytest.mark.parametrize(
    ("given", "run"),
    [
        ("run -n 4 train.py --lr 1", ["run", "-n", "4", "--", ME, "train.py", "--lr", "1"]),
        ("run -n 4 -- a/train.py b.py", ["run", "-n", "4", "--", ME, "a/train.py", "b.py"]),
        ("run -n 4 -- ./trainer x.py", ["run", "-n", "4", "--", "./trainer", "x.py"]),
        ("run --help", ["run", "--help"]),
        ("bench allreduce", ["bench", "allreduce"]),
        ("", []),
    ],
)
def test_scripts_are_run_by_this_interpreter(given: str, run: list[str]) -> None:
    assert arguments(given.split()) == run


def test_the_program_runs_a_script(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text("import shouter, sys; g = shouter.init(); shouter.barrier(); print(sys.argv[1], g.size); shouter.close()")
    path = os.pathsep.join([str(Path(PROGRAM).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "shouter", "run", "-n", "2", str(script), "word"]
    ended = subprocess.run(command, env=environment(PATH=path), capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.count("word 2") == 2, ended
    none = subprocess.run(
        [sys.executable, "-m", "shouter"], env=environment(PATH="/nowhere"), capture_output=True, text=True, timeout=60
    )
    assert none.returncode == 1 and "install the wheel" in none.stderr
