#!/usr/bin/env python3
"""How long a collective of shouter.jax takes, beside what it is made of.

    python tests/jax/bench.py [--rounds 5] [--seconds 0.5] [--bytes 4,65536,1048576] [--ranks 1,2] [--json]

`jax` is a compiled program that is one all-reduce, called and waited for; `nothing` the same program with a handler that does nothing, whose
attributes, side effect and aliases are the same; `library` the library's blocking call on a NumPy array, in place as the donated array of the program
is; `then` the program that does nothing and behind it the library's call, timed as one: the array has passed through the core's caches then, as behind
the all-reduce by JAX. All take turns in one process, fifty calls each. Each round is a job; printed are medians over the rounds of each round's
median (`--lowest`: of each round's fastest twentieth, on a machine that computes something else), in microseconds, with the least and the most of them,
and what is left of `jax` without `nothing` and `library`, and without `then`. The program `shouter` has to be in the package or in PATH.
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
static ffi::Error Nothing(std::string_view, std::string_view, int64_t, int64_t, int64_t, int64_t, ffi::RemainingArgs, ffi::RemainingRets) {
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(nothing, Nothing,
                              ffi::Ffi::Bind().Attr<std::string_view>("kind").Attr<std::string_view>("op").Attr<int64_t>("root")
                                  .Attr<int64_t>("group").Attr<int64_t>("rank").Attr<int64_t>("size").RemainingArgs().RemainingRets());
"""


def nothing():
    """From now on the programs' handler does nothing."""
    import ctypes

    import jax
    from shouter import _compiled
    from shouter.jax import _handler

    _handler.register()
    folder = tempfile.mkdtemp()
    source, made = Path(folder, "nothing.cc"), Path(folder, "nothing.so")
    source.write_text(NOTHING)
    subprocess.run(["c++", *_compiled.FLAGS, *_handler.flags(), str(source), "-o", str(made)], check=True)
    jax.ffi.register_ffi_target("shouter_nothing", jax.ffi.pycapsule(ctypes.CDLL(str(made)).nothing), platform="cpu")
    _handler.TARGET = "shouter_nothing"


def rank_main(options):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import shouter
    from shouter import jax as sj

    shouter.init()
    real = jax.jit(sj.all_reduce, donate_argnums=0)
    arrays = [jax.block_until_ready(real(jnp.zeros(max(1, size // 4)))) for size in options.bytes]
    nothing()
    # Another function, so that it is traced anew.
    idle = jax.jit(lambda x: sj.all_reduce(x), donate_argnums=0)
    found = []
    for array in arrays:
        array, own = jax.block_until_ready(idle(array)), np.zeros(array.shape, np.float32)

        def library(array):
            shouter.allreduce(own)
            return array

        def program(run):
            return lambda array: jax.block_until_ready(run(array))

        calls = {"jax": program(real), "nothing": program(idle), "library": library, "then": lambda array: library(program(idle)(array))}
        took = {name: [] for name in calls}
        until = time.perf_counter() + options.seconds
        while True:
            for name, call in calls.items():
                for _ in range(50):
                    began = time.perf_counter()
                    array = call(array)
                    took[name].append((time.perf_counter() - began) * 1e6)
            # All ranks go on, or none.
            late = bytearray([time.perf_counter() > until])
            shouter.allreduce(late, "max")
            if late[0]:
                break
        parts = 20 if options.lowest else 2
        found.append({name: statistics.quantiles(times, n=parts)[0] for name, times in took.items()})
    if shouter.rank() == 0:
        Path(options.found).write_text(json.dumps(found))
    shouter.close()


def job(ranks, options):
    with tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "found")
        rank = [sys.executable, os.path.abspath(__file__), "--rank", "--found", found]
        rank += ["--bytes", ",".join(map(str, options.bytes)), "--seconds", str(options.seconds), *["--lowest"] * options.lowest]
        start = [sys.executable, "-m", "shouter", "run", "-n", str(ranks), "--cores", "none", "--", *rank]
        ended = subprocess.run(start, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"bench: the ranks failed:\n{ended.stdout}{ended.stderr}")
        return json.loads(Path(found).read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=lambda text: [int(part) for part in text.split(",")], default=[4, 65536, 1 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.5, help="for one row and round")
    parser.add_argument("--lowest", action="store_true", help="the fastest twentieth of each round instead of its median")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_main(options)
    if not options.json:
        head = "".join(f"{name + ' us':>28}" for name in ("jax", "nothing", "library", "then"))
        print(f"{'ranks':>5}{'bytes':>10}{head}{'jax - nothing - library':>25}{'jax - then':>12}")
    for ranks in options.ranks:
        rounds = [job(ranks, options) for _ in range(options.rounds)]
        for at, size in enumerate(options.bytes):
            row = {name: [found[at][name] for found in rounds] for name in rounds[0][at]}
            if options.json:
                print(json.dumps({"bytes": size, "ranks": ranks, "us": row}), flush=True)
                continue
            middle = {name: statistics.median(times) for name, times in row.items()}
            cells = "".join(f"{f'{middle[name]:.1f} ({min(times):.1f} to {max(times):.1f})':>28}" for name, times in row.items())
            left = middle["jax"] - middle["nothing"] - middle["library"]
            print(f"{ranks:>5}{size:>10}{cells}{left:>25.1f}{middle['jax'] - middle['then']:>12.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
