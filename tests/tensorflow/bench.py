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
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frame"))
import bench_frame  # noqa: E402

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

    source = Path(tempfile.mkdtemp(), "nothing.cc")
    source.write_text(NOTHING)
    made = _compiled.compiled(source, "tensorflow", tf.__version__, tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags())
    nothing = tf.load_op_library(str(made)).shouter_nothing
    functions = tf.function(lambda x: st.all_reduce(x)), tf.function(lambda x: nothing(x))

    def measured(count):
        x = tf.zeros(count)
        array, given, taken = (np.zeros(count, np.float32) for _ in range(3))

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
        return bench_frame.timed(calls, 20, options)

    return [measured(max(1, size // 4)) for size in options.bytes]


def rows(middle):
    cells = {}
    for name in ("eager", "function"):
        parts = [middle[f"{name} nothing"] + middle[call] for call in ("library", "library apart")]
        parts.append(middle[f"{name} then"])
        cells[name] = "".join(f"{middle[name] / part:>{width}.2f}" for part, width in zip(parts, (24, 22, 9)))
    return cells


if __name__ == "__main__":
    head = f"{'/ (nothing + library)':>24}{'/ (nothing + apart)':>22}{'/ then':>9}"
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    bench_frame.run(__file__, __doc__, ranks=[2], environment=quiet, rank_main=rank_main, head=head, rows=rows)
