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
        ("run -n 4 train.py -- x", ["run", "-n", "4", "--", ME, "train.py", "--", "x"]),
        ("run -n 4 -- train.py -- x", ["run", "-n", "4", "--", ME, "train.py", "--", "x"]),
        ("run -n 4 --", ["run", "-n", "4", "--"]),
        ("run --help", ["run", "--help"]),
        ("bench allreduce", ["bench", "allreduce"]),
        ("", []),
    ],
)
def test_scripts_are_run_by_this_interpreter(given: str, run: list[str]) -> None:
    assert arguments(given.split()) == run


def test_the_program_runs_a_script(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(
        "import shouter, sys; g = shouter.init(); shouter.barrier(); print(sys.argv[1], g.size); shouter.close()"
    )
    path = os.pathsep.join([str(Path(PROGRAM).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "shouter", "run", "-n", "2", str(script), "word"]
    ended = subprocess.run(command, env=environment(PATH=path), capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.count("word 2") == 2, ended
    none = subprocess.run(
        [sys.executable, "-m", "shouter"], env=environment(PATH="/nowhere"), capture_output=True, text=True, timeout=60
    )
    assert none.returncode == 1 and "install the wheel" in none.stderr


def test_ranks_of_torchrun_get_a_key_through_its_store(tmp_path: Path) -> None:
    """Where torch is: here its rendezvous is a file, and the program is one that says what it was given."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "rendezvous.py").write_text(
        """
import os, time
from pathlib import Path

class Store:
    def set(self, key, value): Path(key.replace("/", "-")).write_text(value)
    def get(self, key):
        while not Path(key.replace("/", "-")).exists(): time.sleep(0.01)
        return Path(key.replace("/", "-")).read_bytes()
    def add(self, key, by):
        with open(key.replace("/", "-"), "a+") as file:
            file.write("x" * by)
            return file.tell()

def rendezvous(url):
    assert url == "env://"
    yield Store(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
    )
    script = f"import os, sys; sys.path[:0] = [{str(tmp_path)!r}, {str(PACKAGE)!r}]; from shouter.__main__ import key_through_store as get; get(); print(os.environ.get('SHOUTER_KEY'))"
    torchrun = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}

    def ranks(**extra: str) -> list[str]:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", script],
                env=environment(RANK=str(rank), **torchrun, **extra),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        return [rank.communicate(timeout=30)[0].strip() for rank in started]

    first, second = ranks()
    assert first == second and len(first) == 64, (first, second)
    # It is deleted there, and a given key is used.
    assert (tmp_path / "shouter-check-key").read_text() == "-"
    assert ranks(SHOUTER_KEY="given") == ["given", "given"]
