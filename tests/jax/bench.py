#!/usr/bin/env python3
"""How long a collective of shouter.jax takes, beside what it is made of.

    python tests/jax/bench.py [--rounds 5] [--seconds 0.5] [--bytes 4,65536,1048576] [--ranks 2] [--json]

`jax` is a compiled program that is one all-reduce, called and waited for in a loop; `library` the library's own call (`shouter bench
allreduce`, private memory); `nothing` the same program with a handler that does nothing, whose attributes, side effect and aliases are the same.
In each round all are measured once, each in a job of its own; printed are medians over the rounds of each round's median, in microseconds,
with the least and the most of them. The program `shouter` has to be in the package or in PATH.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOTHING = """
#include <cstring>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error Nothing(std::string_view, std::string_view, int64_t, int64_t, ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(nothing, Nothing,
                              ffi::Ffi::Bind().Attr<std::string_view>("kind").Attr<std::string_view>("op").Attr<int64_t>("root")
                                  .Attr<int64_t>("group").RemainingArgs().RemainingRets());
"""


def nothing():
    """From now on the programs' handler does nothing."""
    import ctypes

    import jax
    from shouter.jax import _handler

    _handler.register()
    folder = tempfile.mkdtemp()
    source, made = Path(folder, "nothing.cc"), Path(folder, "nothing.so")
    source.write_text(NOTHING)
    subprocess.run(["c++", *_handler._FLAGS, f"-I{jax.ffi.include_dir()}", str(source), "-o", str(made)], check=True)
    jax.ffi.register_ffi_target("shouter_nothing", jax.ffi.pycapsule(ctypes.CDLL(str(made)).nothing), platform="cpu")
    _handler.TARGET = "shouter_nothing"


def rank_main(options):
    import jax
    import jax.numpy as jnp
    import numpy
    import shouter
    from shouter import jax as sj

    shouter.init()
    if options.rank == "nothing":
        nothing()
    call = jax.jit(sj.all_reduce, donate_argnums=0)
    found = []
    for size in options.bytes:
        array = jnp.zeros(max(1, size // 4))
        for _ in range(20):
            array = jax.block_until_ready(call(array))
        began = time.perf_counter()
        for _ in range(10):
            array = jax.block_until_ready(call(array))
        times = max(20, min(20_000, int(options.seconds / ((time.perf_counter() - began) / 10))))
        # Ranks need as many calls.
        times = int(shouter.allreduce(numpy.array([times]), "min")[0])
        took = []
        for _ in range(times):
            began = time.perf_counter()
            array = jax.block_until_ready(call(array))
            took.append((time.perf_counter() - began) * 1e6)
        found.append(statistics.median(took))
    if shouter.rank() == 0:
        Path(options.found).write_text(json.dumps(found))
    shouter.close()


def job(column, options):
    with tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "found")
        rank = [sys.executable, os.path.abspath(__file__), "--rank", column, "--found", found]
        rank += ["--bytes", ",".join(map(str, options.bytes)), "--seconds", str(options.seconds)]
        start = [sys.executable, "-m", "shouter", "run", "-n", str(options.ranks), "--cores", "none", "--", *rank]
        ended = subprocess.run(start, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"bench: the ranks of {column} failed:\n{ended.stdout}{ended.stderr}")
        return json.loads(Path(found).read_text())


def library(options):
    command = [sys.executable, "-m", "shouter", "bench", "allreduce", "--json", "--memory", "private", "--ranks", str(options.ranks)]
    command += ["--bytes", ",".join(map(str, options.bytes)), "--seconds", str(options.seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line)["p50_us"] for line in ended.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=lambda text: [int(part) for part in text.split(",")], default=[4, 65536, 1 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="for one row, column and round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_main(options)
    columns = {"jax": lambda: job("jax", options), "library": lambda: library(options), "nothing": lambda: job("nothing", options)}
    rounds = {name: [] for name in columns}
    for _ in range(options.rounds):
        for name, measure in columns.items():
            rounds[name].append(measure())
    if not options.json:
        print(f"{'':>12}" + "".join(f"{name + ' us':>34}" for name in columns) + f"{'jax - library - nothing':>26}")
    for at, size in enumerate(options.bytes):
        each = {name: [found[at] for found in times] for name, times in rounds.items()}
        middle = {name: statistics.median(times) for name, times in each.items()}
        if options.json:
            print(json.dumps({"bytes": size, "ranks": options.ranks, "us": each}))
            continue
        cells = "".join(f"{f'{middle[name]:.1f} ({min(times):.1f} to {max(times):.1f})':>34}" for name, times in each.items())
        print(f"{size:>10} B{cells}{middle['jax'] - middle['library'] - middle['nothing']:>26.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
