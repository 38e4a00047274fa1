#!/usr/bin/env python3
"""How long torch.distributed.all_reduce of a CPU tensor takes, with Gloo and with Shouter.

    python tests/torch/bench.py [--bytes 4,65536,1048576,67108864] [--rounds 5] [--ranks 2]

Ranks compute on one thread and are not pinned, since Gloo's threads would be pinned with them. Each call is timed on every rank from a
barrier's end; the slowest rank counts. In each round both backends measure each size, in a job of its own each; printed are medians over the
rounds of each round's median, microseconds, with the least and the most of them, and the machine's load before and after.
"""
import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist


def calls(tensor, seconds):
    """Times of calls on this rank, and as many of them as fit into the time, all ranks alike."""
    took = []
    trial = torch.zeros(1, dtype=torch.float64)
    for _ in range(3):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        trial[0] = time.perf_counter() - began
    dist.all_reduce(trial, op=dist.ReduceOp.MAX)
    count = max(11, min(2000, int(seconds / trial.item())))
    for _ in range(count):
        tensor.fill_(1.0)
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        took.append((time.perf_counter() - began) * 1e6)
    if tensor[0].item() != dist.get_world_size():
        raise SystemExit("bench: a sum is wrong")
    slowest = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.median().item()


def rank_main(rank, backend, options, results):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import shouter.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    dist.init_process_group(backend, init_method=f"file://{options.store}", rank=rank, world_size=options.ranks)
    found = [calls(torch.ones(max(1, size // 4)), options.seconds) for size in options.bytes]
    if rank == 0:
        results.put(found)
        results.close()
        results.join_thread()
    dist.barrier()
    os._exit(0)  # nothing is left to say, and Gloo's threads end with the process


def measure(backend, options):
    """Runs one job; returns a median for each size."""
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        options.store = os.path.join(folder, "store")
        ranks = [context.Process(target=rank_main, args=(rank, backend, options, results)) for rank in range(options.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"bench: ranks of {backend} ended with {[process.exitcode for process in ranks]}")
    return results.get(timeout=10)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=lambda text: [int(part) for part in text.split(",")], default=[4, 65536, 1 << 20, 64 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one size, backend and round")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.ranks} ranks, {os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}", flush=True)
    found = {"gloo": [], "shouter": []}
    for _ in range(options.rounds):
        for backend, medians in found.items():
            medians.append(measure(backend, options))
    print(f"{'bytes':>10} {'gloo us':>28} {'shouter us':>28} {'shouter/gloo':>12}")
    for at, size in enumerate(options.bytes):
        each = {backend: [medians[at] for medians in rounds] for backend, rounds in found.items()}
        middle = {backend: statistics.median(times) for backend, times in each.items()}
        cells = [f"{middle[backend]:.1f} ({min(times):.1f} to {max(times):.1f})" for backend, times in each.items()]
        print(f"{size:>10} {cells[0]:>28} {cells[1]:>28} {middle['shouter'] / middle['gloo']:>12.2f}")
    print(f"load after {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
