"""The frame of tests/jax/checks.py, tests/tensorflow/checks.py and horovod_checks.py: jobs whose ranks run checks, and calls beside them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def numbers(rank: int, shape: tuple[int, ...]) -> Any:
    """A rank's numbers, which every rank knows: small ones, so that sums and products are exact in every type."""
    return np.random.default_rng(rank).integers(1, 4, shape)


def refused(call: Callable[[], Any], *words: str, error: Any) -> str:
    """Calls it, which has to raise an error that says these words."""
    try:
        call()
    except error as why:
        assert all(word in str(why) for word in words), (str(why), words)
        return str(why)
    raise AssertionError(("not refused", words))


def killed(step: Callable[[], Any], is_killed: bool, error: Any) -> None:
    """Rank 1 is killed while all ranks make steps; the others' steps end with an error that names it."""
    step()
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    for _ in range(1000):
        try:
            step()
        except error as why:
            assert "rank 1" in str(why), why
            break
    else:
        raise AssertionError("nothing was raised")
    # The key heartbeat_timeout, and a second.
    assert time.monotonic() - begun < 11


def snippets_of(page: str) -> list[str]:
    """The Python code of a page of docs/."""
    found = [part.split("```")[0] for part in (ROOT / "docs" / page).read_text().split("```python\n")[1:]]
    assert found
    return found


class Job(NamedTuple):
    """The launcher's options, the number of ranks, their checks, and how many ranks are killed."""

    options: list[str]
    ranks: int
    checks: list[Callable[[], None]]
    deaths: int = 0


class Frame:
    """The jobs of a script, which starts itself as `SCRIPT --rank JOB` for each rank, with these variables."""

    def __init__(self, script: str, jobs: dict[str, Job], patience: float, **variables: str) -> None:
        self.script, self.jobs, self.patience, self.variables = script, jobs, patience, variables

    def start(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOUTER_")}
        environment |= {"SHOUTER_HEARTBEAT_TIMEOUT": "10s"} | self.variables | variables
        try:
            return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self.patience, check=False)
        except subprocess.TimeoutExpired as why:
            told = f"{(why.stderr or b'').decode()}\nnot ended after {self.patience} s"
            return subprocess.CompletedProcess(why.args, 1, (why.stdout or b"").decode(), told)

    def run_rank(self, job: str) -> None:
        """The body of a rank: a group is there when it is called."""
        import faulthandler

        faulthandler.dump_traceback_later(self.patience - 50, exit=True)
        for check in self.jobs[job].checks:
            check()
            print(f"done: {check.__name__}\n", end="", flush=True)

    def of_job(self, program: str, name: str) -> tuple[int, int]:
        """How many of its checks passed, and how many failed."""
        options, ranks, checks, deaths = self.jobs[name]
        ended = self.start(program, "run", *options, "--", sys.executable, self.script, "--rank", name)
        # Who is killed has not done the last one.
        due = {check: ranks - (deaths if check is checks[-1] else 0) for check in checks}
        failed = [check for check in checks if ended.stdout.count(f"done: {check.__name__}\n") != due[check]]
        for check in checks:
            print(f"{'FAILED' if check in failed else 'passed'}: {check.__name__.replace('_', ' ')} ({name})", flush=True)
        has_ended_well = deaths > 0 or ended.returncode == 0
        if failed or not has_ended_well:
            print(ended.stdout[-12000:], ended.stderr[-12000:], sep="\n", flush=True)
        return len(checks) - len(failed), max(len(failed), int(not has_ended_well))

    def of_call(self, program: str, call: Callable[[str], None]) -> tuple[int, int]:
        name = call.__name__.replace("_", " ")
        try:
            call(program)
        except Exception as why:  # noqa: BLE001
            print(f"FAILED: {name}: {why}", flush=True)
            return 0, 1
        print(f"passed: {name}", flush=True)
        return 1, 0


def program() -> str:
    """The program `shouter` that was given."""
    return sys.argv[1] if len(sys.argv) > 1 else "shouter"


def finish(found: Iterable[tuple[int, int]]) -> None:
    """Tells how many passed and failed in all, and ends the process."""
    passed, failed = (sum(counts) for counts in zip(*found))
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)
