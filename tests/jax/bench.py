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
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frame"))
import bench_frame  # noqa: E402

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

    real = jax.jit(sj.all_reduce, donate_argnums=0)
    arrays = [jax.block_until_ready(real(jnp.zeros(max(1, size // 4)))) for size in options.bytes]
    nothing()
    # Another function, so that it is traced anew.
    idle = jax.jit(lambda x: sj.all_reduce(x), donate_argnums=0)

    def measured(array):
        # A program takes its array, and gives another one.
        held, own = [jax.block_until_ready(idle(array))], np.zeros(array.shape, np.float32)

        def program(run):
            held[0] = jax.block_until_ready(run(held[0]))

        def library():
            shouter.allreduce(own)

        def then():
            program(idle)
            library()

        calls = {"jax": lambda: program(real), "nothing": lambda: program(idle), "library": library, "then": then}
        return bench_frame.timed(calls, 50, options)

    return [measured(array) for array in arrays]


def rows(middle):
    left = middle["jax"] - middle["nothing"] - middle["library"]
    return {"jax": f"{left:>25.1f}{middle['jax'] - middle['then']:>12.1f}"}


if __name__ == "__main__":
    head = f"{'jax - nothing - library':>25}{'jax - then':>12}"
    bench_frame.run(__file__, __doc__, ranks=[1, 2], environment={"JAX_PLATFORMS": "cpu"}, rank_main=rank_main, head=head, rows=rows)
