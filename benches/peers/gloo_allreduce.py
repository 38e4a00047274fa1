#!/usr/bin/python3
"""How long an all-reduce takes with Gloo through torch.distributed, for `shouter bench allreduce --against gloo`.

    /usr/bin/python3 gloo_allreduce.py --ranks 2 --bytes 4..64Mi

Needs torch with its gloo backend: Debian's python3-torch, which only Debian's own /usr/bin/python3 finds. Starts its ranks
itself; they meet over TCP on the loopback interface, pinned to one CPU each. Prints one JSON object a line on standard
output, with the fields of `shouter bench allreduce`. An iteration is timed on every rank from a barrier's end to the end
of all_reduce; the slowest rank counts. Every iteration's result is checked outside of the timed part.
"""
import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import sys
import tempfile
import time

WARM_UP, FEWEST, MOST = 5, 11, 5000


def size(text):
    for suffix, shift in (("Ki", 10), ("Mi", 20), ("", 0)):
        if text.endswith(suffix):
            return int(text[: len(text) - len(suffix)]) << shift


def sizes(text):
    """`4,64Ki` or `4..64Mi` (powers of four), as a list of bytes."""
    out = []
    for part in text.split(","):
        first, _, last = part.partition("..")
        at, end = size(first), size(last or first)
        if at < 4 or at % 4:
            raise argparse.ArgumentTypeError("a size must be a multiple of 4, of at least 4")
        while at <= end:
            out.append(at)
            at *= 4
    return out


def rank_main(rank, options, store):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=options.ranks)
    slowest = torch.zeros(1, dtype=torch.float64)
    try:
        for size_bytes in options.bytes:
            count = size_bytes // 4
            base = torch.arange(count, dtype=torch.float32) % 1021  # small whole numbers: exact sums in any order
            data = torch.empty(count, dtype=torch.float32)

            def once(iteration):
                torch.add(base, float(rank + iteration % 7), out=data)
                dist.barrier()
                start = time.perf_counter()
                dist.all_reduce(data)
                slowest[0] = (time.perf_counter() - start) * 1e6
                shift = sum(r + iteration % 7 for r in range(options.ranks))
                if not torch.equal(data, base * options.ranks + float(shift)):
                    raise SystemExit("gloo_allreduce: a sum is wrong")
                dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
                return slowest.item()

            for i in range(WARM_UP):
                start = time.perf_counter()
                once(i)
                trial = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.broadcast(trial, 0)
            iterations = max(FEWEST, min(MOST, int(options.seconds / max(trial.item(), 1e-7))))
            took = sorted(once(WARM_UP + i) for i in range(iterations))
            if rank == 0:
                p50, p99 = took[iterations // 2], took[round((iterations - 1) * 0.99)]
                algbw = size_bytes / (p50 * 1e3)
                line = {
                    "bench": "allreduce",
                    "who": "gloo",
                    "ranks": options.ranks,
                    "hosts": options.hosts,
                    "bytes": size_bytes,
                    "iterations": iterations,
                    "p50_us": round(p50, 3),
                    "p99_us": round(p99, 3),
                    "algbw_gbytes": round(algbw, 6),
                    "busbw_gbytes": round(algbw * 2 * (options.ranks - 1) / options.ranks, 6),
                }
                print(json.dumps(line, separators=(",", ":")), flush=True)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1, help="only repeated in the output")
    parser.add_argument("--bytes", type=sizes, default=sizes("4..64Mi"), help="4,64Ki or 4..64Mi (powers of four)")
    parser.add_argument("--seconds", type=float, default=0.5, help="about this long a size")
    options = parser.parse_args()
    try:
        import torch.distributed as dist
    except ImportError:
        sys.exit("gloo_allreduce: this python has no torch; install python3-torch and run /usr/bin/python3")
    if not dist.is_available() or not dist.is_gloo_available():
        sys.exit("gloo_allreduce: this torch was built without gloo")
    # A fresh interpreter a rank: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=rank_main, args=(r, options, store)) for r in range(options.ranks)]
        for process in ranks:
            process.start()
        # Whoever ends badly takes the rest along, so that no rank waits for a peer that is gone.
        status = 0
        while alive := [p.sentinel for p in ranks if p.is_alive()]:
            multiprocessing.connection.wait(alive)
            if any(p.exitcode for p in ranks if p.exitcode is not None):
                for process in ranks:
                    process.terminate()
        for process in ranks:
            process.join()
            status = status or process.exitcode
        sys.exit(1 if status else 0)


if __name__ == "__main__":
    main()
