#!/usr/bin/env python3
"""How long a collective of shouter.tensorflow takes, beside what it is made of.

    python tests/tensorflow/bench.py [--rounds 5] [--seconds 0.5] [--bytes 4,65536,1048576] [--ranks 2] [--json]

`eager` is an all-reduce called eagerly, `function` a `tf.function` that is one; `nothing` the same with an asynchronous operation of the same shape
that does nothing; `library` the blocking call of the library on a NumPy array, in place, and `apart` from one array into another, as the operation
has it. `then` is the operation that does nothing and behind it the call `apart`, timed as one: the tensors have passed through the core's caches then,
as behind an all-reduce by TensorFlow. All take turns in one process, 20 calls each. Each round is a job; printed are medians over the rounds of each
round's median, in microseconds (`--lowest`: of each round's fastest twentieth, on a machine that computes something else), and the ratio of `eager` and
`function` to the sum of `nothing` and `library`, of `nothing` and `apart`, and to `then`. The program `shouter` has to be in the package or in PATH.
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
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
class Nothing : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    tensorflow::Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->forward_input_or_allocate_output({0}, 0, context->input(0).shape(), &output), done);
    done();
  }
};
REGISTER_OP("ShouterNothing").Input("input: T").Attr("T: type").SetIsStateful().Output("output: T")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_KERNEL_BUILDER(Name("ShouterNothing").Device(tensorflow::DEVICE_CPU), Nothing);
"""


def rank_main(options):
    import numpy as np
    import shouter
    import shouter.tensorflow as st
    import tensorflow as tf
    from shouter import _compiled

    shouter.init()
    folder = tempfile.mkdtemp()
    source = Path(folder, "nothing.cc")
    source.write_text(NOTHING)
    made = _compiled.compiled(source, "tensorflow", tf.__version__, tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags())
    nothing = tf.load_op_library(str(made)).shouter_nothing
    functions = tf.function(lambda x: st.all_reduce(x)), tf.function(lambda x: nothing(x))
    found = []
    for size in options.bytes:
        x = tf.zeros(max(1, size // 4))
        array, given, taken = (np.zeros(max(1, size // 4), np.float32) for _ in range(3))

        def then(call):
            call(x)
            shouter.allreduce(given, out=taken)

        calls = {
            "eager": lambda: st.all_reduce(x),
            "function": lambda: functions[0](x),
            "eager nothing": lambda: nothing(x),
            "function nothing": lambda: functions[1](x),
            "library": lambda: shouter.allreduce(array),
            "library apart": lambda: shouter.allreduce(given, out=taken),
            "eager then": lambda: then(nothing),
            "function then": lambda: then(functions[1]),
        }
        for call in calls.values():
            call()
        took = {name: [] for name in calls}
        until = time.perf_counter() + options.seconds
        while True:
            for name, call in calls.items():
                for _ in range(20):
                    began = time.perf_counter()
                    call()
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
        ended = subprocess.run(start, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"bench: the ranks failed:\n{ended.stdout}{ended.stderr}")
        return json.loads(Path(found).read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=lambda text: [int(part) for part in text.split(",")], default=[4, 65536, 1 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=lambda text: [int(part) for part in text.split(",")], default=[2])
    parser.add_argument("--seconds", type=float, default=0.5, help="for one row and round")
    parser.add_argument("--lowest", action="store_true", help="the fastest twentieth of each round instead of its median")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_main(options)
    if not options.json:
        print(f"{'ranks':>5}{'bytes':>10}  {'':18}{'us':>28}{'/ (nothing + library)':>24}{'/ (nothing + apart)':>22}{'/ then':>9}")
    for ranks in options.ranks:
        rounds = [job(ranks, options) for _ in range(options.rounds)]
        for at, size in enumerate(options.bytes):
            row = {name: [found[at][name] for found in rounds] for name in rounds[0][at]}
            if options.json:
                print(json.dumps({"bytes": size, "ranks": ranks, "us": row}), flush=True)
                continue
            middle = {name: statistics.median(times) for name, times in row.items()}
            for name, times in row.items():
                cells = f"{f'{middle[name]:.1f} ({min(times):.1f} to {max(times):.1f})':>28}"
                if name in ("eager", "function"):
                    parts = [middle[f"{name} nothing"] + middle[call] for call in ("library", "library apart")]
                    cells += f"{middle[name] / parts[0]:>24.2f}{middle[name] / parts[1]:>22.2f}{middle[name] / middle[f'{name} then']:>9.2f}"
                print(f"{ranks:>5}{size:>10}  {name:18}{cells}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
