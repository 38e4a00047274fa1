#!/usr/bin/env python3
"""How long PyTorch's calls take with Shouter, beside what they can be compared with.

    python tests/torch/bench.py [PART...] [--rounds 5] [--seconds 0.3] [--bytes 4,65536,1048576,67108864] [--device cpu|cuda]
        [--json]

    allreduce  dist.all_reduce, with Gloo and with Shouter, --ranks on one host; `shared` are tensors of shouter.torch.empty
    link       the same on two emulated hosts: Shouter over the embedded link (--transport), Gloo over loopback
    ddp        a backward pass of DistributedDataParallel with the parameters of a ResNet-18 (11.7 M in 62 tensors) and synthetic gradients,
               and the part of it that is synchronisation: what no_sync() saves. 2 ranks on one host, then 4 on two emulated hosts. `shared`
               is shouter.torch.parallel.DistributedDataParallel, whose buckets lie in memory that the ranks of a host share
    horovod    the same backward pass, its gradients pushed one by one by shouter.horovod.torch's DistributedOptimizer, with its `synchronize`: those
               below 64 KiB fused (SHOUTER_FUSE_BELOW), and none; beside DistributedDataParallel's buckets over the same backend. 4 ranks on one host
    sparse     dist.all_reduce of the gradient of an embedding of 1 M x 64 float32, of which each rank has touched 4,096 rows: as a sparse tensor, with Shouter
               and with Gloo, and as a dense one. 4 ranks on two emulated hosts
    call       a dist.all_reduce that is waited for, beside what it is made of: the library's call (`shouter bench allreduce`), and
               dist.all_reduce with a backend that does nothing
    numpy      shouter.allreduce of a NumPy array, beside the library's call

Without a PART, allreduce. With --device cuda the tensors of allreduce, link, ddp, horovod and sparse are on GPUs: rank r has device r modulo their number, and a call
has ended when its device has nothing left to do. Ranks are started by `python -m shouter run`, so the program has to be in the package or in PATH. They compute on
one thread and are not pinned, since Gloo's threads would be pinned with them. Each call is timed on every rank from a barrier's end; the
slowest rank counts. In each round all columns are measured once, in a job of its own each; printed are medians over the rounds of each
round's median, in microseconds, with the least and the most of them, and the machine's load before and after. With --json each row is an
object of its own: part, what, ranks, hosts, and for each column its medians by round.
"""
import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

PARTS = ("allreduce", "link", "ddp", "horovod", "sparse", "call", "numpy")
NEW = hasattr(dist.distributed_c10d, "BackendConfig")
# Training steps that are not counted, and the fewest that are.
WARM, LEAST = 3, 5


def resnet18():
    """The shapes of its parameters, in their order."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            shapes += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                shapes += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*shapes, (1000, 512), (1000,)]


class Synthetic(torch.nn.Module):
    """Has these parameters, and the gradient of each is one pass over it."""

    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(shape)) for shape in resnet18()])

    def forward(self, factor):
        return sum((parameter * factor).sum() for parameter in self.all)


# The measurements of a rank. `slowest` gives every rank the times of the slowest.


def slowest(took):
    times = torch.tensor(took, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return times


def settled(options):
    """Returns when this rank's device has nothing left to do."""
    if options.device == "cuda":
        torch.cuda.synchronize()


def timed(call, meet, most, seconds, least=11):
    """Times of calls on this rank, in microseconds, as many of them as fit into the time, all ranks alike; `most` gives all the longest."""

    def once():
        meet()
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    trial = most([once() for _ in range(3)][-1])
    return [once() * 1e6 for _ in range(max(least, min(2000, int(seconds / max(trial, 1e-7)))))]


def all_reduces(options, kind):
    """Medians by size."""
    empty = torch.empty
    if kind == "shared":
        from shouter.torch import empty
    found = []
    for size in options.bytes:
        tensor = empty(max(1, size // 4)).to(options.device)

        def meet():
            tensor.fill_(1.0)
            settled(options)
            dist.barrier()

        def call():
            dist.all_reduce(tensor)
            settled(options)

        took = timed(call, meet, lambda trial: slowest([trial]).item(), options.seconds)
        assert tensor[0].item() == dist.get_world_size(), "a sum is wrong"
        found.append(slowest(took).median().item())
    return found


def embedding(options, kind):
    """The median for the gradient of an embedding, sparse or dense."""
    rows, width, touched = 1 << 20, 64, 4096
    torch.manual_seed(dist.get_rank())
    indices = torch.randperm(rows)[:touched].sort().values[None]
    gradient = torch.sparse_coo_tensor(indices, torch.ones(touched, width), (rows, width), device=options.device).coalesce()
    if kind == "dense":
        gradient = gradient.to_dense()
    given = None

    def meet():
        nonlocal given
        given = gradient.clone()
        settled(options)
        dist.barrier()

    def call():
        dist.all_reduce(given)
        settled(options)

    took = timed(call, meet, lambda trial: slowest([trial]).item(), options.seconds, least=5)
    total = given.sum() if kind == "dense" else given.coalesce().values().sum()
    assert total.item() == dist.get_world_size() * touched * width, "a sum is wrong"
    return [slowest(took).median().item()]


def steps(options, kind):
    """Medians of the backward pass, and of what synchronisation takes of it."""
    parallel = torch.nn.parallel.DistributedDataParallel
    if kind == "shared":
        from shouter.torch.parallel import DistributedDataParallel as parallel
    model = parallel(Synthetic().to(options.device), gradient_as_bucket_view=True)
    factor = torch.ones((), device=options.device)

    def backward(alone, loss):
        loss.backward()

    return passes(options, model, factor, backward, model.no_sync, dist.barrier, slowest)


def pushes(options, kind):
    """The same with Horovod's optimizer."""
    import shouter.horovod.torch as hvd

    hvd.init()
    # Without synchronisation another model has the same parameters.
    models = Synthetic().to(options.device), Synthetic().to(options.device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(models[0].parameters(), lr=0.1), models[0].named_parameters())
    factor = torch.ones((), device=options.device)

    def most(took):
        return hvd.allreduce(torch.tensor(took, dtype=torch.float64), op=hvd.Max)

    def backward(alone, loss):
        loss.backward()
        if not alone:
            optimizer.synchronize()

    return passes(options, models, factor, backward, contextlib.nullcontext, hvd.barrier, most)


def passes(options, models, factor, backward, unsynchronised, barrier, most):
    """Medians of backward passes with synchronisation, and of what it takes of them. `models` are one with and one without, or one for both."""
    by_kind = models if isinstance(models, tuple) else (models, models)
    both = ([], [])
    for step in itertools.count():
        for took, alone, model in zip(both, (False, True), by_kind):
            with unsynchronised() if alone else contextlib.nullcontext():
                loss = model(factor)
                settled(options)
                barrier()
                began = time.perf_counter()
                backward(alone, loss)
                settled(options)
            took.append((time.perf_counter() - began) * 1e6)
        for model in by_kind:
            model.zero_grad(set_to_none=False)
        if step == WARM:
            # The first steps have built the buckets, and agreed on an order.
            for took in both:
                took.clear()
            until = time.perf_counter() + options.seconds
        elif step > WARM + LEAST and most([float(time.perf_counter() > until)]).item():
            break
    with_it, without = (most(took).median().item() for took in both)
    return [with_it, with_it - without]


def nothing(options):
    """dist.all_reduce with a backend that does nothing, in a job of one rank."""
    if NEW:
        from torch._C._distributed_c10d import Backend

        class Nothing(Backend):
            def allreduce(self, tensors, opts):
                return None

            def getBackendName(self):
                return "nothing"
    else:
        from shouter.torch._work import Flight, Work
        from torch.distributed.distributed_c10d import ProcessGroup

        class Nothing(ProcessGroup):
            def allreduce(self, tensors, opts):
                return Work(Flight([], tensors), None)

    devices = {"devices": ["cpu"]} if NEW else {}
    dist.Backend.register_backend("nothing", lambda options, _=None: Nothing(0, 1), extended_api=True, **devices)
    dist.init_process_group("nothing", init_method=f"file://{options.store}", rank=0, world_size=1)
    found = []
    for size in options.bytes:
        tensor = torch.ones(max(1, size // 4))
        took = timed(lambda: dist.all_reduce(tensor), lambda: tensor.fill_(1.0), lambda trial: trial, options.seconds)
        found.append(statistics.median(took))
    return found


def arrays(options):
    import numpy
    import shouter

    shouter.init()

    def most(took):
        return shouter.allreduce(numpy.atleast_1d(numpy.array(took, numpy.float64)), "max")

    found = []
    for size in options.bytes:
        array = numpy.ones(max(1, size // 4), numpy.float32)

        def meet():
            array.fill(1)
            shouter.barrier()

        took = timed(lambda: shouter.allreduce(array), meet, lambda trial: float(most(trial)[0]), options.seconds)
        assert array[0] == shouter.size(), "a sum is wrong"
        found.append(float(numpy.median(most(took))))
    shouter.close()
    return found


def rank_main(options):
    """One rank of a job: measures one column, and rank 0 writes what it has found."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    rank, size = int(os.environ.get("SHOUTER_RANK", 0)), int(os.environ.get("SHOUTER_SIZE", 1))
    what, column = options.rank
    if what == "numpy":
        found = arrays(options)
    elif column == "nothing":
        found = nothing(options)
    elif what == "horovod" and column != "ddp":
        found = pushes(options, column)
    else:
        import shouter.torch  # noqa: F401  registers the backend

        if options.device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        backend = "gloo" if column.startswith("gloo") else "shouter"
        dist.init_process_group(backend, init_method=f"file://{options.store}", rank=rank, world_size=size)
        found = {"ddp": steps, "horovod": steps, "sparse": embedding}.get(what, all_reduces)(options, column)
    if rank == 0:
        with open(options.store + ".found", "w") as file:
            json.dump(found, file)
    if dist.is_initialized() and column != "nothing":
        dist.barrier()
    elif what == "horovod":
        import shouter.horovod.torch as hvd

        hvd.shutdown()
    sys.stdout.flush()
    os._exit(0)  # nothing is left to say, and Gloo's threads end with the process


# The jobs.


def job(what, column, ranks, hosts, options):
    """Runs one; returns what rank 0 has found."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        sizes = ",".join(map(str, options.bytes))
        rank = [sys.executable, os.path.abspath(__file__), "--rank", what, column, "--store", store]
        rank += ["--bytes", sizes, "--seconds", str(options.seconds), "--device", options.device]
        start = [sys.executable, "-m", "shouter", "run", "-n", str(ranks), "--hosts", str(hosts), "--cores", "none"]
        if hosts > 1 and options.transport:
            start += ["--transport", options.transport]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "SHOUTER_DUMP_FOLDER": folder}
        if column == "fused":
            environment["SHOUTER_FUSE_BELOW"] = str(options.fuse_below)
        ended = subprocess.run(rank if ranks == 1 else [*start, "--", *rank], env=environment, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"bench: the ranks of {what}, {column} failed:\n{ended.stdout}{ended.stderr}")
        with open(store + ".found") as file:
            return json.load(file)


def library(options):
    """The library's own call, by size."""
    command = [sys.executable, "-m", "shouter", "bench", "allreduce", "--json", "--memory", "private"]
    command += ["--ranks", str(options.ranks), "--bytes", ",".join(map(str, options.bytes)), "--seconds", str(options.seconds)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"bench: {' '.join(command)}:\n{ended.stdout}{ended.stderr}")
    return [json.loads(line)["p50_us"] for line in ended.stdout.splitlines() if line.startswith("{")]


def rounds(columns, options):
    """By column: for each of its rows the medians of all rounds."""
    found = {name: [] for name in columns}
    for _ in range(options.rounds):
        for name, measure in columns.items():
            found[name].append(measure())
    return {name: list(zip(*medians)) for name, medians in found.items()}


def show(part, ranks, hosts, rows, found, ratio, options):
    """A table, or an object a row; `ratio` says which columns are divided: the first by the sum of the others."""
    load = os.getloadavg()[0]
    if not options.json:
        print(f"\n{part}: {ranks} ranks on {hosts} host{'s' if hosts > 1 else ''}, tensors on {options.device}")
        print(f"{'':>16}" + "".join(f" {name + ' us':>32}" for name in found) + f" {ratio[0] + '/' + '+'.join(ratio[1:]):>24}")
    for at, row in enumerate(rows):
        each = {name: column[at] for name, column in found.items()}
        middle = {name: statistics.median(times) for name, times in each.items()}
        if options.json:
            said = {"part": part, "what": row, "ranks": ranks, "hosts": hosts, "device": options.device, "torch": torch.__version__, "load": load, "us": each}
            print(json.dumps(said), flush=True)
            continue
        cells = [f"{middle[name]:.1f} ({min(times):.1f} to {max(times):.1f})" for name, times in each.items()]
        against = sum(middle[name] for name in ratio[1:])
        print(f"{row:>16}" + "".join(f" {cell:>32}" for cell in cells) + f" {middle[ratio[0]] / against:>24.2f}", flush=True)


def run_part(part, options):
    def of(what, column, ranks, hosts):
        return lambda: job(what, column, ranks, hosts, options)

    sizes, ranks = [f"{size} B" for size in options.bytes], options.ranks
    if part in ("allreduce", "link"):
        hosts = 2 if part == "link" else 1
        names = ("shouter", "shared", "gloo") if hosts == 1 and options.device == "cpu" else ("shouter", "gloo")
        columns = {name: of("allreduce", name, ranks, hosts) for name in names}
        show(part, ranks, hosts, sizes, rounds(columns, options), ("shouter", "gloo"), options)
    elif part == "ddp":
        # Gradients on GPUs have no memory that the host shares.
        names = ("shouter", "shared", "gloo") if NEW and options.device == "cpu" else ("shouter", "gloo")
        for ranks, hosts in ((2, 1), (4, 2)):
            columns = {name: of("ddp", name, ranks, hosts) for name in names}
            show(part, ranks, hosts, ["backward", "synchronisation"], rounds(columns, options), ("shouter", "gloo"), options)
    elif part == "horovod":
        columns = {name: of("horovod", name, 4, 1) for name in ("fused", "single", "ddp")}
        show(part, 4, 1, ["backward", "synchronisation"], rounds(columns, options), ("fused", "ddp"), options)
    elif part == "sparse":
        columns = {name: of("sparse", name, 4, 2) for name in ("sparse", "dense", "gloo sparse")}
        show(part, 4, 2, ["4096 of 1 M rows"], rounds(columns, options), ("sparse", "dense"), options)
    elif part == "call":
        columns = {
            "dist": of("allreduce", "shouter", ranks, 1),
            "library": lambda: library(options),
            "nothing": of("call", "nothing", 1, 1),
        }
        show(part, ranks, 1, sizes, rounds(columns, options), ("dist", "library", "nothing"), options)
    else:
        columns = {"numpy": of("numpy", "numpy", ranks, 1), "library": lambda: library(options)}
        show(part, ranks, 1, sizes, rounds(columns, options), ("numpy", "library"), options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: allreduce)")
    parser.add_argument("--bytes", type=lambda text: [int(part) for part in text.split(",")], default=[4, 65536, 1 << 20, 64 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2, help="of all parts but ddp, horovod and sparse")
    parser.add_argument("--seconds", type=float, default=0.3, help="for one row, column and round")
    parser.add_argument("--transport", help="between emulated hosts, as of `shouter run` (default: the embedded link)")
    parser.add_argument("--fuse-below", type=int, default=1 << 16, help="of horovod, in bytes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_main(options)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    if options.device == "cuda" and set(options.parts) & {"call", "numpy"}:
        parser.error("call and numpy are about tensors in host memory")
    if not options.json:
        print(f"torch {torch.__version__}, {os.cpu_count()} CPUs, load before {os.getloadavg()[0]:.1f}", flush=True)
    for part in options.parts or ["allreduce"]:
        run_part(part, options)
    if not options.json:
        print(f"load after {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
