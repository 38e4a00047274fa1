"""Runs checks on forked ranks: one process group for all of them, one file of results for each rank."""
import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist


class Rank:
    """What a check knows of where it runs."""

    def __init__(self, rank, size, backend, folder):
        self.rank, self.size, self.backend, self.folder = rank, size, backend, folder

    def seed(self, more=0):
        """Seeds torch with a number of this rank's own."""
        torch.manual_seed(1000 * more + self.rank)


def rank_main(rank, size, backend, checks, folder):
    with open(os.path.join(folder, f"rank-{rank}.log"), "w", encoding="utf-8", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = log
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR1, log, all_threads=True)
        status = 1
        try:
            torch.set_num_threads(1)
            os.environ["SHOUTER_DUMP_FOLDER"] = folder
            dist.init_process_group(backend, init_method="file://" + os.path.join(folder, "store"), rank=rank, world_size=size)
            own, results, seconds = Rank(rank, size, backend, folder), {}, {}
            for check in checks:
                began = time.monotonic()
                torch.manual_seed(0)
                print(f"check {check.__name__}")
                results[check.__name__] = {name: value.detach().clone() for name, value in check(own).items()}
                dist.barrier()
                seconds[check.__name__] = time.monotonic() - began
            torch.save((results, seconds), os.path.join(folder, f"rank-{rank}.pt"))
            dist.destroy_process_group()
            status = 0
        except BaseException:  # the rank ends here, whatever it was
            traceback.print_exc()
        log.flush()
        # Threads of torch's compilers do not end with the interpreter.
        os._exit(status)


class Failed(Exception):
    """Some rank failed; its text has what all ranks printed."""


def run(backend, checks, size=4, limit=120):
    """Runs `checks` on `size` ranks of one process group.

    Returns a list by rank of {check: {name: tensor}}, and {check: seconds} of rank 0. Raises Failed if a rank fails, or if
    they take longer than `limit` seconds; none of them is left running.
    """
    with tempfile.TemporaryDirectory(prefix="trainers-") as folder:
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=rank_main, args=(rank, size, backend, checks, folder)) for rank in range(size)]
        for process in ranks:
            process.start()
        end = time.monotonic() + limit
        try:
            while running := [process.sentinel for process in ranks if process.exitcode is None]:
                multiprocessing.connection.wait(running, timeout=max(0, end - time.monotonic()))
                if any(process.exitcode for process in ranks) or time.monotonic() >= end:
                    break
            if any(process.exitcode is None for process in ranks):
                # Peers of a failed rank have time to end with their own errors; then the rest print their stacks.
                time.sleep(1)
                for process in ranks:
                    if process.exitcode is None:
                        os.kill(process.pid, signal.SIGUSR1)
                time.sleep(1)
        finally:
            for process in ranks:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.join()
        statuses = [process.exitcode for process in ranks]
        if statuses != [0] * size:
            logs = []
            for rank in range(size):
                with contextlib.suppress(OSError), open(os.path.join(folder, f"rank-{rank}.log"), encoding="utf-8", errors="replace") as log:
                    logs.append(f"---- {backend}, rank {rank}, exit status {statuses[rank]}\n{log.read()}")
            raise Failed("\n".join(logs))
        loaded = [torch.load(os.path.join(folder, f"rank-{rank}.pt")) for rank in range(size)]
        return [results for results, _ in loaded], loaded[0][1]
