#!/usr/bin/python3
"""How long collectives take with Gloo through torch.distributed, for `shouter bench COLLECTIVE --against gloo`.

    python3 gloo_collectives.py --collective allgather --ranks 2 --bytes 4..64Mi

Needs torch with its gloo backend: that of `scripts/lib/venv torch 2.15`, which prints its Python, or Debian's python3-torch, which only
Debian's own /usr/bin/python3 finds. Starts its ranks itself; they meet over TCP on the loopback interface, pinned to one CPU each. Prints
one JSON object a line on standard output, with the fields of `shouter bench`; bytes and bandwidths count as in cli/src/bench/workload.rs. An iteration is timed on
every rank from a barrier's end to the end of the call; the slowest rank counts. Roots take turns. Every iteration's result is checked
outside of the timed part; of a barrier, that no rank leaves before all have entered.

Exit status: 0 done, 1 something failed, 69 this torch has no such collective with gloo.
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
COLLECTIVES = (
    "allreduce", "reduce", "broadcast", "allgather", "gather", "scatter", "reduce_scatter", "alltoall", "reduce_scatter_v", "alltoall_v",
    "barrier",
)
IN_BLOCKS = ("allgather", "gather", "scatter", "alltoall", "alltoall_v")
UNAVAILABLE = 69


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


class Workload:
    """One size of a collective on one rank: its memory, the call, and what the result has to be."""

    def __init__(self, name, rank, ranks, size_bytes):
        import torch

        self.name, self.rank, self.ranks = name, rank, ranks
        count = size_bytes // 4 // (ranks if name.startswith("reduce_scatter") else 1)
        # Blocks that differ have a share of r + 1.
        begins = [count * r * (r + 1) // (ranks + 1) if name.endswith("_v") else count * r for r in range(ranks + 1)]
        self.lengths = [end - begin for begin, end in zip(begins, begins[1:])]
        if name in ("scatter", "reduce_scatter", "reduce_scatter_v"):
            self.given = self.lengths
        else:
            self.given = [self.lengths[rank]] * (ranks if name in ("alltoall", "alltoall_v") else 1)
        taken = begins[ranks] if name in ("allgather", "gather", "alltoall", "alltoall_v") else self.lengths[rank]
        # Small whole numbers: exact sums in any order.
        self.base = torch.arange(max(self.lengths) * ranks, dtype=torch.float32) % 1021
        self.data = torch.empty(sum(self.given), dtype=torch.float32)
        in_place = name in ("allreduce", "reduce", "broadcast", "barrier")
        self.result = self.data if in_place else torch.empty(taken, dtype=torch.float32)

    def input(self, rank, iteration, begin, length):
        """Part of what `rank` gives in an iteration."""
        return self.base[begin : begin + length] + float(rank + iteration % 7)

    def fill(self, iteration):
        self.data.copy_(self.input(self.rank, iteration, 0, len(self.data)))

    def blocks(self, tensor):
        return list(tensor.split(self.lengths))

    def prepare(self, root):
        """The call, with its lists of blocks made."""
        import torch.distributed as dist

        is_root = self.rank == root
        data, result = self.data, self.result
        if self.name == "allreduce":
            return lambda: dist.all_reduce(data)
        if self.name == "reduce":
            return lambda: dist.reduce(data, root)
        if self.name == "broadcast":
            return lambda: dist.broadcast(data, root)
        if self.name == "allgather":
            into = self.blocks(result)
            return lambda: dist.all_gather(into, data)
        if self.name == "gather":
            into = self.blocks(result) if is_root else None
            return lambda: dist.gather(data, into, dst=root)
        if self.name == "scatter":
            given = self.blocks(data) if is_root else None
            return lambda: dist.scatter(result, given, src=root)
        if self.name in ("reduce_scatter", "reduce_scatter_v"):
            given = self.blocks(data)
            return lambda: dist.reduce_scatter(result, given)
        if self.name == "alltoall":
            return lambda: dist.all_to_all_single(result, data)
        if self.name == "alltoall_v":
            return lambda: dist.all_to_all_single(result, data, self.lengths, self.given)
        return dist.barrier

    def expected(self, root, iteration):
        """What this rank has to find, or None."""
        import torch

        own, before = self.lengths[self.rank], sum(self.lengths[: self.rank])
        if self.name in ("allreduce", "reduce", "reduce_scatter", "reduce_scatter_v"):
            if self.name == "reduce" and self.rank != root:
                return None
            begin = before if self.name.startswith("reduce_scatter") else 0
            return sum(self.input(r, iteration, begin, own) for r in range(self.ranks))
        if self.name == "broadcast":
            return self.input(root, iteration, 0, own)
        if self.name == "scatter":
            return self.input(root, iteration, before, own)
        if self.name == "allgather" or (self.name == "gather" and self.rank == root):
            return torch.cat([self.input(r, iteration, 0, length) for r, length in enumerate(self.lengths)])
        if self.name in ("alltoall", "alltoall_v"):
            return torch.cat([self.input(r, iteration, self.rank * length, length) for r, length in enumerate(self.lengths)])
        return None


def line_of(options, size_bytes, took):
    """The fields of `shouter bench`, from the sorted times in microseconds."""
    name, ranks = options.collective, options.ranks
    p50, p99 = took[len(took) // 2], took[round((len(took) - 1) * 0.99)]
    line = {"bench": name, "who": "gloo", "ranks": ranks, "hosts": options.hosts}
    if name != "barrier":
        line["bytes"] = size_bytes
    line |= {"iterations": len(took), "p50_us": round(p50, 3), "p99_us": round(p99, 3)}
    if name != "barrier":
        algbw = size_bytes * (ranks if name in IN_BLOCKS else 1) / (p50 * 1e3)
        rest = (ranks - 1) / ranks
        share = {"allreduce": 2 * rest, "reduce": 1, "broadcast": 1}.get(name, rest)
        line |= {"algbw_gbytes": round(algbw, 6), "busbw_gbytes": round(algbw * share, 6)}
    return line


def rank_main(rank, options, store):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=options.ranks)
    # The slowest time, the last entry, and the first exit (of barriers).
    most = torch.zeros(3, dtype=torch.float64)
    try:
        for size_bytes in options.bytes:
            work = Workload(options.collective, rank, options.ranks, size_bytes)

            def once(iteration):
                root = iteration % options.ranks
                work.fill(iteration)
                call = work.prepare(root)
                dist.barrier()
                start = time.perf_counter()
                call()
                most[0] = (time.perf_counter() - start) * 1e6
                if options.collective == "barrier":
                    # Processes of a host read the same monotonic clock.
                    most[1], most[2] = start, -time.perf_counter()
                else:
                    # No rank checks before all have returned: a check would take the core from a rank that is still in the timed call.
                    dist.barrier()
                due = work.expected(root, iteration)
                if due is not None and not torch.equal(work.result, due):
                    raise SystemExit("gloo_collectives: a result is wrong")
                dist.all_reduce(most, op=dist.ReduceOp.MAX)
                if most[1] > -most[2]:
                    raise SystemExit("gloo_collectives: a rank left the barrier before all had entered")
                return most[0].item()

            for i in range(WARM_UP):
                start = time.perf_counter()
                try:
                    once(i)
                except (AttributeError, NotImplementedError, RuntimeError) as why:
                    if i > 0 or "support" not in str(why):
                        raise
                    print(f"gloo_collectives: {why}", file=sys.stderr)
                    sys.exit(UNAVAILABLE)
                trial = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.broadcast(trial, 0)
            iterations = max(FEWEST, min(MOST, int(options.seconds / max(trial.item(), 1e-7))))
            took = sorted(once(WARM_UP + i) for i in range(iterations))
            if rank == 0:
                print(json.dumps(line_of(options, size_bytes, took), separators=(",", ":")), flush=True)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collective", choices=COLLECTIVES, default="allreduce")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hosts", type=int, default=1, help="only repeated in the output")
    parser.add_argument("--bytes", type=sizes, default=sizes("4..64Mi"), help="4,64Ki or 4..64Mi (powers of four)")
    parser.add_argument("--seconds", type=float, default=0.5, help="about this long a size")
    options = parser.parse_args()
    if options.collective == "barrier":
        options.bytes = [0]
    elif options.collective.startswith("reduce_scatter") and any(size % (4 * options.ranks) for size in options.bytes):
        parser.error("--bytes: a size of reduce_scatter must be a multiple of 4 for each rank")
    try:
        import torch.distributed as dist
    except ImportError:
        sys.exit("gloo_collectives: this python has no torch; run that of `scripts/lib/venv torch 2.15`, or install python3-torch and run /usr/bin/python3")
    if not dist.is_available() or not dist.is_gloo_available():
        sys.exit("gloo_collectives: this torch was built without gloo")
    # A fresh interpreter for each rank: torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ranks = [context.Process(target=rank_main, args=(r, options, store)) for r in range(options.ranks)]
        for process in ranks:
            process.start()
        # A rank that fails ends the others, so that none waits for a peer that has ended.
        while alive := [p.sentinel for p in ranks if p.is_alive()]:
            multiprocessing.connection.wait(alive)
            if any(p.exitcode for p in ranks if p.exitcode is not None):
                for process in ranks:
                    process.terminate()
        for process in ranks:
            process.join()
        statuses = {process.exitcode for process in ranks}
        sys.exit(UNAVAILABLE if UNAVAILABLE in statuses else 1 if statuses != {0} else 0)


if __name__ == "__main__":
    main()
