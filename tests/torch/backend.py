#!/usr/bin/env python3
"""Checks the PyTorch backend: starts ranks, runs the checks of backend_*.py in them, and ends with `N passed, N failed, N skipped`.

usage: backend.py [--device cpu|cuda] [--keep-going] [PART...]

Runs with the interpreter whose PyTorch is to be tested, and with the package `shouter` on PYTHONPATH. A part is one of collectives,
messages, groups, training, failures, gpu, cuda, docs, horovod; without any, all are run. Each part is one job; its checks follow one another, and
one that fails fails those behind it, since the ranks may no longer agree; with --keep-going those are run all the same.

With --device cuda (PyTorch 2, and a GPU) tensors of the checks are on GPUs, unless a check says where: rank r has device r modulo their number.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
PARTS = {"collectives": 3, "messages": 3, "groups": 4, "training": 2, "failures": 2, "gpu": 2, "cuda": 2, "docs": 2, "horovod": 3}
# Parts whose ranks are programs of their own: CUDA does not work in a fork, and the simulated driver is found by a variable.
OWN_PROGRAMS = {"gpu", "cuda"}
# A rank that takes longer hangs.
LIMIT = 240


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].removeprefix("usage: "))
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--rank", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(*options.rank, options)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    # Before PyTorch is imported.
    kept = environment("")
    os.environ.clear()
    os.environ.update(kept)
    sys.stdout.reconfigure(line_buffering=True)
    totals = [0, 0, 0]
    for part in options.parts or PARTS:
        begun = time.monotonic()
        for which, count in enumerate(run_part(part, options)):
            totals[which] += count
        print(f"{part}: {time.monotonic() - begun:.1f} s")
    print("{} passed, {} failed, {} skipped".format(*totals))
    return 1 if totals[1] else 0


def run_part(part: str, options: argparse.Namespace) -> tuple[int, int, int]:
    """Runs one part's job; returns how many checks passed, failed and were skipped."""
    import torch

    module = importlib.import_module(f"backend_{part}")
    total = len(module.CHECKS)
    folder = tempfile.mkdtemp()
    outputs = [open(Path(folder) / f"rank-{rank}", "w+") for rank in range(PARTS[part])]
    # Ranks are forks of this process: what they import takes seconds of a core. DistributedDataParallel imports the compiler.
    if not torch.__version__.startswith("1."):
        import torch._dynamo  # noqa: F401
    ranks = [fork(part, rank, folder, output, options) for rank, output in enumerate(outputs)]
    until = time.monotonic() + LIMIT
    ended = [end_of(rank, until) for rank in ranks]
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    shutil.rmtree(folder)
    lines = texts[0].splitlines()
    passed = sum(line.startswith("passed: ") for line in lines)
    skipped = sum(line.startswith("skipped: ") for line in lines)
    for line in lines:
        if line.startswith(("passed: ", "skipped: ")):
            print(f"{line} ({part}, PyTorch {torch.__version__})")
    expected = getattr(module, "ENDS", [0] * len(ranks))
    if passed + skipped == total and ended == expected:
        return passed, 0, skipped
    print(f"FAILED: {part}: {passed + skipped} of {total} checks were done; the ranks ended with {ended}, not {expected}")
    for rank, text in enumerate(texts):
        print(f"--- rank {rank}:\n{text[-6000:]}")
    return passed, max(1, total - passed - skipped), skipped


def fork(part: str, rank: int, folder: str, output: IO[str], options: argparse.Namespace) -> int:
    """Starts a rank; returns its process id."""
    sys.stdout.flush()
    if (pid := os.fork()) != 0:
        return pid
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    os.chdir(folder)
    os.environ["SHOUTER_DUMP_FOLDER"] = folder
    arguments = (part, str(rank), str(PARTS[part]), f"{folder}/store")
    if part in OWN_PROGRAMS or options.device != "cpu":
        command = [sys.executable, __file__, "--device", options.device, *["--keep-going"] * options.keep_going, "--rank", *arguments]
        os.execve(sys.executable, command, environment(part) | {"SHOUTER_DUMP_FOLDER": folder})
    sys.exit(run_rank(*arguments, options))


def end_of(rank: int, until: float) -> int | None:
    """The exit status of a rank, or None if it has to be killed then."""
    handle = os.pidfd_open(rank)
    late = not select.select([handle], [], [], max(0.1, until - time.monotonic()))[0]
    os.close(handle)
    if late:
        os.kill(rank, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    return None if late else status


def environment(part: str) -> dict[str, str]:
    """No launcher's variables, and one thread for each rank: ranks share the cores. The simulated CUDA driver is for its own part."""
    foreign = ("SHOUTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    simulated = HERE.parents[1] / "target" / "cuda-sim"
    if part == "gpu" and (simulated / "libcuda.so.1").exists():
        kept |= {"LD_LIBRARY_PATH": str(simulated), "XDG_CACHE_HOME": str(simulated / "cache")}
    # A rank of the second kind waits for one of the first: none may keep a core busy for long.
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run_rank(part: str, rank: str, size: str, store: str, options: argparse.Namespace) -> int:
    import torch

    faulthandler.enable()
    # A rank that hangs prints its stack.
    faulthandler.dump_traceback_later(LIMIT - 10, exit=True)
    torch.set_num_threads(1)
    torch.manual_seed(int(rank))
    if options.device == "cuda":
        torch.cuda.set_device(int(rank) % torch.cuda.device_count())
        torch.set_default_device("cuda")
    module = importlib.import_module(f"backend_{part}")
    module.start(int(rank), int(size), store)
    status = 0
    for check in module.CHECKS:
        try:
            why = check()
        except BaseException:
            traceback.print_exc()
            print(f"failed: {check.__name__}", flush=True)
            status = 1
            if options.keep_going:
                continue
            return status
        name = check.__name__.replace("_", " ")
        print(f"skipped: {name}: {why}" if why else f"passed: {name}", flush=True)
    module.stop()
    return status


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
