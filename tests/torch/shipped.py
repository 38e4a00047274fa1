#!/usr/bin/env python3
"""Runs the tests that PyTorch ships (torch/testing/_internal/distributed/distributed_test.py) against a backend.

    python tests/torch/shipped.py --backend shouter --json shouter-2.15.json
    python tests/torch/shipped.py --backend gloo test_all_reduce_sum test_broadcast
    python tests/torch/shipped.py --backend shouter --against docs/pytorch-tests.md --part 3
    python tests/torch/shipped.py --table docs/pytorch-tests.md *.json

A test's ranks are forked from this process, which has imported torch, so a test costs a process group and not an import of
torch in every rank. Every rank computes on one thread. A test that runs longer than its limit is killed and has failed.

Gates are opened: PyTorch's module is imported as for Gloo, so its decorators let a test through where they would for Gloo;
after that the name is the backend's own, which only claims to be Gloo's too, and groups are made with it. A backend other than Gloo also runs what is only for
MPI on the CPU (all_to_all). torch 2.15 asks for 8 ranks where 1.13 asks for 3: 4 will do.

A skip counts as allowed only if its reason is CUDA, if Gloo's outcome is a skip too (given by `--against`), or if torch itself
refuses a backend that is not one of its own (REFUSALS). Any other skip is counted as a failure.
The last line is `N passed, N failed, N skipped`; exit status 0 if none failed.
"""
import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import tempfile
import time

from shipped_table import outcomes_of, write_table

RANKS = 4
# Seconds for one test. The slowest that passes takes about six on a quiet machine, with Gloo.
LIMIT = 60
# The answers of torch's own code to a backend that is not in its list of names, before any call reaches the backend.
REFUSALS = (
    ("monitored_barrier is only implemented for GLOO backend", "torch has monitored_barrier for Gloo only"),
    ("sourceRank() may only be called on work objects", "torch 2 does not ask a backend in Python for the source of a receive"),
    ("String comparison failed: 'custom' != ", "torch 2 calls every backend that is not its own `custom` in DDP's log"),
)
# The words of a test's reason when it needs a device that this host lacks.
CUDA = re.compile(r"cuda|gpu|nccl|rocm|ucc|accelerator", re.IGNORECASE)


class Name(str):
    """A backend's name in PyTorch's tests: where they ask for Gloo, which is how they ask for tensors on the CPU, it says yes."""

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def load(backend):
    """PyTorch's module with its gates as for Gloo, and then with the backend's own name. Returns the class of its tests."""
    import torch

    torch.set_num_threads(1)
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), INIT_METHOD="file://", TEMP_DIR=tempfile.gettempdir())
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    from torch.testing._internal import common_distributed

    common_distributed.skip_if_small_worldsize = lambda test: test
    from torch.testing._internal.distributed import distributed_test as shipped

    if backend == "shouter":
        import shouter.torch  # noqa: F401  registers the backend
    os.environ["BACKEND"], shipped.BACKEND = backend, Name(backend)

    if not torch.__version__.startswith("1."):
        # Optimizers import it at their first step: here once, for all ranks of all tests.
        import torch._dynamo
    else:
        # Python 3.11 refuses a data class of torch.distributed._shard of 1.13, for any backend: DDP runs without
        # ReplicatedTensor.
        from torch.nn.parallel import _replicated_tensor_ddp_utils

        _replicated_tensor_ddp_utils._set_ddp_with_replicated_tensor = lambda value: None

    class Shipped(shipped.TestDistBackend, shipped.DistributedTest._DistTestBase):
        pass

    return shipped, Shipped


def names_of(tests):
    return sorted(name for name in dir(tests) if name.startswith("test_"))


def rank_main(tests, rank, name, file_name, pipe, log):
    """A rank of one test: what it prints goes to its log; its exit status is what PyTorch's own parent looks at."""
    with open(log, "w", encoding="utf-8") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.setpgid(0, 0)
    tests._run(rank, name, file_name, pipe)


class Outcome:
    """How a test ended: `passed`, `failed` or `skipped`, why, and after how many seconds."""

    def __init__(self, outcome, reason="", seconds=0.0):
        self.outcome, self.reason, self.seconds = outcome, " ".join(reason.split()), seconds


class Running:
    """The ranks of one test."""

    def __init__(self, shipped, tests, name):
        self.shipped, self.name = shipped, name
        self.folder = tempfile.TemporaryDirectory(prefix="shipped-")
        self.began = time.monotonic()
        where = self.folder.name
        for part in ("barrier", "test_dir", "init_dir"):
            os.mkdir(os.path.join(where, part))
        os.environ["TEMP_DIR"] = os.environ["SHOUTER_DUMP_FOLDER"] = where
        shipped.INIT_METHOD = "file://" + os.path.join(where, "init_dir", "shared_init_file")
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        self.shipped.Barrier.barrier_id = 0
        context = multiprocessing.get_context("fork")
        self.logs, self.ranks, self.pipes = [], [], []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            self.logs.append(os.path.join(where, f"rank-{rank}.log"))
            file_name = os.path.join(where, "store")
            process = context.Process(target=rank_main, args=(tests, rank, name, file_name, theirs, self.logs[-1]))
            process.start()
            theirs.close()
            self.ranks.append(process)
            # PyTorch's rank reads requests from this pipe, and takes its end for a request.
            self.pipes.append(ours)

    def left(self):
        """Seconds until the limit."""
        return self.began + LIMIT - time.monotonic()

    def poll(self):
        """The outcome, or None while the test runs."""
        statuses = [process.exitcode for process in self.ranks]
        error = self.shipped.MultiProcessTestCase.TEST_ERROR_EXIT_CODE
        if None in statuses and self.left() > 0 and not any(status not in (None, 0) and status == error for status in statuses):
            return None
        late = None in statuses and self.left() <= 0
        self.kill(trace=late)
        statuses = [process.exitcode for process in self.ranks]
        outcome = self.judge(statuses, late)
        outcome.seconds = time.monotonic() - self.began
        for pipe in self.pipes:
            pipe.close()
        return outcome

    def kill(self, trace):
        """Ends what still runs of the test, with the children of its ranks; with `trace` ranks first write where they are."""
        for process in self.ranks:
            if trace and process.exitcode is None:
                os.kill(process.pid, signal.SIGUSR1)
        if trace:
            time.sleep(0.5)
        for process in self.ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()

    def text(self):
        parts = []
        for rank, log in enumerate(self.logs):
            with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as lines:
                parts.append(f"---- rank {rank}\n{lines.read()}")
        return "\n".join(parts)

    def judge(self, statuses, late):
        text = self.text()
        for answer, why in REFUSALS:
            if answer in text and any(statuses):
                return Outcome("skipped", f"refused: {why}")
        if late:
            return Outcome("failed", f"still running after {LIMIT} s")
        if statuses == [0] * RANKS:
            return Outcome("passed")
        if len(set(statuses)) == 1:
            for skip in self.shipped.TEST_SKIPS.values():
                if statuses[0] == skip.exit_code:
                    said = re.search(r"skipping test \S+ for following reason: (.*)", text)
                    return Outcome("skipped", said.group(1) if said else skip.message)
        errors = re.findall(r"\b(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failed|Mismatch|Deadline|Closed): .*$", text, re.MULTILINE)
        return Outcome("failed", f"exit statuses {statuses}; {errors[-1] if errors else 'no exception'}"[:300])


def run(shipped, tests, names, options):
    """Runs the tests, some at once; yields name and outcome as they end."""
    waiting, running = list(reversed(names)), []
    try:
        while waiting or running:
            while waiting and len(running) < options.jobs:
                name = waiting.pop()
                method = getattr(tests, name)
                why = getattr(method, "__unittest_skip_why__", "")
                if getattr(method, "__unittest_skip__", False) and (options.backend == "gloo" or not why.startswith("Only MPI")):
                    yield name, Outcome("skipped", why)
                else:
                    running.append(Running(shipped, tests, name))
            sentinels = [process.sentinel for test in running for process in test.ranks if process.exitcode is None]
            if sentinels:
                multiprocessing.connection.wait(sentinels, timeout=max(0.05, min(test.left() for test in running)))
            for test in list(running):
                outcome = test.poll()
                if outcome is None:
                    continue
                running.remove(test)
                if outcome.outcome == "failed" and options.show:
                    print(test.text(), file=sys.stderr)
                test.folder.cleanup()
                yield test.name, outcome
    finally:
        for test in running:
            test.kill(trace=False)


def judged(outcome, gloo):
    """The outcome, with a skip that is not allowed turned into a failure."""
    if outcome.outcome == "skipped" and not (
        CUDA.search(outcome.reason) or outcome.reason.startswith("refused") or gloo == "skipped"
    ):
        return Outcome("failed", f"skipped without leave: {outcome.reason}", outcome.seconds)
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="tests, or with --table the files that --json wrote")
    parser.add_argument("--backend", default="shouter")
    parser.add_argument("--against", metavar="TABLE", help="a table that --table wrote: what Gloo skips may be skipped")
    parser.add_argument("--part", type=int, metavar="N", help="only every Nth test of those that Gloo passes in TABLE, without those of timeouts")
    parser.add_argument("--jobs", type=int, default=2, help="tests at once")
    parser.add_argument("--json", metavar="FILE", help="write all outcomes there")
    parser.add_argument("--show", action="store_true", help="print what the ranks of a test that failed have printed")
    parser.add_argument("--table", metavar="FILE", help="write the table of these outcomes and end")
    options = parser.parse_args()
    if options.table:
        write_table(options.table, options.names)
        return 0
    if options.part and not options.against:
        parser.error("--part needs --against: the tests are chosen from that table")
    shipped, tests = load(options.backend)
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    gloo = outcomes_of(options.against, version, "gloo") if options.against else {}
    names = options.names or names_of(tests)
    if options.part:
        # Tests of timeouts need ranks that start within a second or two of each other: they are for a machine without
        # other load.
        names = [name for name in names if gloo.get(name) == "passed" and not re.search("timeout|monitored", name)][:: options.part]
        if not names:
            sys.exit(f"error: {options.against} has no test of torch {version} that Gloo passes")
    ended, count = {}, {"passed": 0, "failed": 0, "skipped": 0}
    began = time.monotonic()
    for name, outcome in run(shipped, tests, names, options):
        if options.backend != "gloo":
            outcome = judged(outcome, gloo.get(name))
        count[outcome.outcome] += 1
        ended[name] = {"outcome": outcome.outcome, "reason": outcome.reason, "seconds": round(outcome.seconds, 2)}
        if outcome.outcome != "skipped":
            print(f"{outcome.outcome}: {name} {outcome.seconds:.1f} s {outcome.reason}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"torch": version, "backend": options.backend, "tests": dict(sorted(ended.items()))}, out, indent=1)
    print(f"torch {torch.__version__}, {options.backend}, {RANKS} ranks, {time.monotonic() - began:.0f} s")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
