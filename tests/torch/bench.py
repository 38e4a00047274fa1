#!/usr/bin/env python3
"""How long torch.distributed.all_reduce of a CPU tensor takes, with Gloo and with Shouter in turns in the same processes.

    python tests/torch/bench.py [--bytes 4,65536,1048576,67108864] [--rounds 5] [--ranks 2]

Ranks are pinned to a core each, as far as there are cores, and compute on one thread. Each call is timed on every rank from a
barrier's end; the slowest rank counts. In each round both backends measure each size; printed are medians over the rounds of each
round's median, microseconds, with the least and the most of them, and the machine's load before and after.
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


def calls(tensor, group, barrier, seconds):
    """Times of calls on this rank, and as many of them as fit into the time, all ranks alike."""
    took = []
    trial = torch.zeros(1, dtype=torch.float64)
    for _ in range(3):
        barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        trial[0] = time.perf_counter() - began
    dist.all_reduce(trial, op=dist.ReduceOp.MAX)
    count = max(11, min(2000, int(seconds / trial.item())))
    for _ in range(count):
        tensor.fill_(1.0)
        barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        took.append((time.perf_counter() - began) * 1e6)
    if tensor[0].item() != dist.get_world_size():
        raise SystemExit("bench: a sum is wrong")
    slowest = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.median().item()


def rank_main(rank, options, folder):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import shouter.torch  # noqa: F401  registers the backend

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=options.ranks)
    groups = {name: dist.new_group(backend=name) for name in ("gloo", "shouter")}
    found = {}
    for _ in range(options.rounds):
        for size in options.bytes:
            for name, group in groups.items():
                tensor = torch.ones(max(1, size // 4))
                found.setdefault((size, name), []).append(calls(tensor, group, lambda: dist.barrier(group=group), options.seconds))
    if rank == 0:
        print(f"{'bytes':>10} {'gloo us':>28} {'shouter us':>28} {'shouter/gloo':>12}")
        for size in options.bytes:
            cells, middle = [], {}
            for name in groups:
                each = found[size, name]
                middle[name] = statistics.median(each)
                cells.append(f"{middle[name]:.1f} ({min(each):.1f} to {max(each):.1f})")
            print(f"{size:>10} {cells[0]:>28} {cells[1]:>28} {middle['shouter'] / middle['gloo']:>12.2f}")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # nothing is left to say, and Gloo's threads end with the process


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=lambda text: [int(part) for part in text.split(",")], default=[4, 65536, 1 << 20, 64 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one size, backend and round")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {options.ranks} ranks, {os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}", flush=True)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_main, args=(rank, options, folder)) for rank in range(options.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    print(f"load after {os.getloadavg()[0]:.1f}")
    return 1 if any(process.exitcode for process in ranks) else 0


if __name__ == "__main__":
    sys.exit(main())
