"""Checks shouter.tensorflow: jobs of ranks that run the checks below, and the example. Ends with `N passed, N failed, N skipped`.

    python tests/tensorflow/checks.py [PROGRAM]

Runs with the interpreter whose TensorFlow is to be tested, and with the package `shouter` on PYTHONPATH. PROGRAM is `shouter`, else the one in PATH.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frame"))

import checks_frame  # noqa: E402
from checks_frame import ROOT, Frame, Job, finish, killed, numbers, program, snippets_of  # noqa: E402


# The checks, each by all ranks of a job. Every rank knows every other's arrays.


def of(rank: int, shape: tuple[int, ...] = (4, 3), dtype: Any = "float32") -> Any:
    return tf.cast(numbers(rank, shape), dtype)


def every(*arguments: Any) -> list[Any]:
    return [np.asarray(tf.cast(of(rank, *arguments), tf.float64)) for rank in range(shouter.size())]


def same(found: Any, wanted: Any) -> None:
    found = np.asarray(tf.cast(found, tf.float64))
    assert np.array_equal(found, np.asarray(wanted)), (found, wanted)


def refused(call: Any, *words: str, error: Any = None) -> None:
    checks_frame.refused(call, *words, error=error or tf.errors.InvalidArgumentError)


def run(call: Any, *inputs: Any) -> list[Any]:
    """What it returns eagerly, and as a function, twice."""
    function = tf.function(call, autograph=False)
    return [call(*inputs), function(*inputs), function(*inputs)]


def every_call_with_every_type() -> None:
    rank, size = shouter.rank(), shouter.size()
    shape = (2 * size, 3)
    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"):
        x, all_of = of(rank, shape, dtype), every(shape, dtype)
        total, whole = sum(all_of), np.concatenate(all_of)
        for found in run(st.all_reduce, x):
            same(found, total)
        for found in run(lambda x: st.broadcast(x, size - 1), x):
            same(found, all_of[-1])
        for found in run(st.all_gather, x):
            assert found.shape == (2 * size * size, 3)
            same(found, whole)
        for found in run(st.reduce_scatter, x):
            same(found, total[2 * rank : 2 * rank + 2])
        for found in run(st.all_to_all, x):
            same(found, np.concatenate([each[2 * rank : 2 * rank + 2] for each in all_of]))
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        for found in run(st.all_reduce, tf.cast(tf.constant([1.0, -2.0]) * (rank + 1), dtype)):
            same(found, np.array([1.0, -2.0]) * size * (size + 1) / 2)
    for op, reduce in (("min", np.minimum), ("max", np.maximum), ("prod", np.multiply)):
        for found in run(lambda x, op=op: st.all_reduce(x, op), of(rank)):
            same(found, reduce.reduce(every()))
    for found in run(lambda x: st.all_reduce(x, "avg"), of(rank, (4, 3), "float64")):
        assert np.allclose(found, sum(every()) / size, rtol=1e-12)
    for found in run(lambda x: st.all_reduce(x, "lor"), tf.constant([rank == 0, False])):
        assert found.numpy().tolist() == [True, False]
    for empty in run(st.all_reduce, tf.zeros((0, 3))):
        assert empty.shape == (0, 3)
    for scalar in run(st.all_reduce, tf.constant(2.0)):
        same(scalar, 2.0 * size)


def rows_that_differ() -> None:
    rank, size = shouter.rank(), shouter.size()
    rows = [of(each, (each, 2)) for each in range(size)]
    for found in run(lambda x: st.all_gather(x, ragged=True), rows[rank]):
        same(found, np.concatenate(rows))
    # The ranks do not divide them: numpy gives the first parts one more, too.
    for count in (1, size - 1, size + 1, 3 * size - 1):
        shape = (count, 2)
        for found in run(st.reduce_scatter, of(rank, shape)):
            same(found, np.array_split(sum(every(shape)), size)[rank])
        for found in run(lambda x: st.reduce_scatter(x, "max"), of(rank, shape)):
            same(found, np.array_split(np.maximum.reduce(every(shape)), size)[rank])
        unknown = tf.function(st.reduce_scatter, autograph=False, input_signature=[tf.TensorSpec((None, 2))])
        same(unknown(of(rank, shape)), np.array_split(sum(every(shape)), size)[rank])
    # Rank i gives (i + j) % 3 rows to rank j.
    splits = [[(i + j) % 3 for j in range(size)] for i in range(size)]
    given = [of(each, (sum(splits[each]), 2)) for each in range(size)]
    blocks = [np.split(given[i], np.cumsum(splits[i])[:-1]) for i in range(size)]
    for found, taken in run(lambda x: st.all_to_all(x, splits[rank]), given[rank]):
        same(found, np.concatenate([blocks[i][rank] for i in range(size)]))
        assert taken.numpy().tolist() == [splits[i][rank] for i in range(size)]


def derivatives() -> None:
    """Those of the sum over ranks of (rank + 1) times the sum of the result."""
    rank, size = shouter.rank(), shouter.size()
    weights, x = sum(range(1, size + 1)), of(rank, (2 * size, 3))

    def derivative(call: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = (rank + 1) * tf.reduce_sum(call(x))
        return tape.gradient(loss, x)

    blocks = np.repeat(np.arange(1.0, size + 1), 2)[:, None] * np.ones((1, 3))
    uneven = np.array_split(np.zeros((2 * size - 1, 3)), size)
    for call, wanted in (
        (st.all_reduce, np.full(x.shape, weights)),
        (lambda x: st.all_reduce(x, "avg"), np.full(x.shape, weights / size)),
        (lambda x: st.broadcast(x, size - 1), np.full(x.shape, weights * (rank == size - 1))),
        (st.all_gather, np.full(x.shape, weights)),
        (lambda x: st.all_gather(x[: rank + 1], ragged=True), np.concatenate([np.full((rank + 1, 3), weights), np.zeros((2 * size - rank - 1, 3))])),
        (st.reduce_scatter, blocks),
        (lambda x: st.reduce_scatter(x, "avg"), blocks / size),
        (lambda x: st.reduce_scatter(x[1:]), np.concatenate([np.zeros((1, 3)), *(np.full(part.shape, at + 1.0) for at, part in enumerate(uneven))])),
        (st.all_to_all, blocks),
        (lambda x: st.all_to_all(x, [2] * size)[0], blocks),
    ):
        for found in run(lambda x, call=call: derivative(call, x), x):
            assert np.allclose(found, wanted), (found, wanted)
    refused(lambda: derivative(lambda x: st.all_reduce(x, "max"), x), "max has no derivative", error=NotImplementedError)

    def second(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            first = derivative(lambda x: st.all_reduce(x**2) ** 2, x)
        return outer.gradient(first, x)

    def two_of_one(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = st.all_reduce(x)
            squares, cubes = tf.reduce_sum(y**2), tf.reduce_sum(y**3)
        return tape.gradient(squares, x), tape.gradient(cubes, x), tf.cond(tf.constant(True), lambda: tape.gradient(y, x), lambda: x)

    # The loss is weights * sum(y**2), y = sum of all x**2: 4 weights x y is its first derivative by x. The second one is that of the sum of all
    # ranks' first ones.
    x = of(rank, (2 * size, 3), "float64")
    all_of = every((2 * size, 3), "float64")
    y = sum(each**2 for each in all_of)
    for found in run(second, x):
        same(found, 4 * weights * y + 8 * weights * all_of[rank] * sum(all_of))
    for squares, cubes, ones in run(two_of_one, x):
        same(squares, size * 2 * sum(all_of))
        same(cubes, size * 3 * sum(all_of) ** 2)
        same(ones, np.full(x.shape, size))


def order() -> None:
    """Operations of one graph become ready in another order on each rank, and threads submit theirs in another one."""
    rank, size, count = shouter.rank(), shouter.size(), 40
    inputs = [of(rank, (100 + number,)) for number in range(count)]

    @tf.function(autograph=False)
    def shuffled(inputs: Any, turns: Any) -> Any:
        def late(x: Any, turns: Any) -> Any:
            # It is ready after so many turns.
            return tf.while_loop(lambda turn, _: turn < turns, lambda turn, x: (turn + 1, x * 1.0), (0, x))[1]

        found = [st.all_reduce(late(x, turns[at]), name=f"shuffled {at}") for at, x in enumerate(inputs)]
        # Some depend on others.
        return found, [st.all_gather(each) for each in found]

    for step in range(5):
        turns = np.random.default_rng(1000 * step + rank).permutation(count).astype(np.int32) * 20
        sums, gathered = shuffled(inputs, tf.constant(turns))
        for number in range(count):
            wanted = sum(every((100 + number,)))
            same(sums[number], wanted)
            same(gathered[number], np.tile(wanted, size))
    found: dict[int, Any] = {}

    def submit(number: int) -> None:
        found[number] = st.all_reduce(inputs[number], name=f"of a thread {number}")

    threads = [threading.Thread(target=submit, args=(int(number),)) for number in np.random.default_rng(rank).permutation(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(count):
        same(found[number], sum(every((100 + number,))))


def control_flow() -> None:
    rank, size = shouter.rank(), shouter.size()

    @tf.function
    def looped(x: Any, times: Any) -> Any:
        for _ in tf.range(times):
            x = st.all_reduce(x) / size
        return x if times > 2 else st.all_gather(x)

    same(looped(tf.fill([3], float(rank)), tf.constant(5)), np.full(3, (size - 1) / 2))
    assert looped(tf.ones(3), tf.constant(1)).shape == (3 * size,)

    @tf.function
    def unused(x: Any) -> Any:
        st.all_reduce(x, name="unused on most ranks")
        return x

    unused(tf.ones(3))
    # One rank's trace is another one's.
    traced = tf.function(lambda x: st.all_gather(x, ragged=True))
    for rows in (2, 3 if rank == 0 else 2, 2):
        assert traced(tf.ones((rows, 2))).shape[0] in (2 * size, 2 * size + 1)


def rows_of_indices() -> None:
    rank, size = shouter.rank(), shouter.size()
    for op in ("sum", "avg"):
        for dtype in ("float32", "bfloat16"):
            dense = np.zeros((10, 2))
            for each in range(size):
                for at, index in enumerate([7, each, 7]):
                    dense[index] += (each + 1) * (at + 1)
            dense /= size if op == "avg" else 1
            values = tf.cast(tf.constant([[1.0, 1], [2, 2], [3, 3]]) * (rank + 1), dtype)
            given = tf.IndexedSlices(values, tf.constant([7, rank, 7], tf.int64), tf.constant([10, 2], tf.int64))
            for found in run(lambda x, op=op: st.all_reduce(x, op), given):
                assert found.indices.numpy().tolist() == sorted({7, *range(size)})
                assert np.allclose(tf.cast(tf.convert_to_tensor(found), tf.float64), dense, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
    for found in run(st.all_reduce, tf.IndexedSlices(tf.zeros((0, 2)), tf.zeros(0, tf.int32), tf.constant([10, 2]))):
        assert found.values.shape == (0, 2)
    # Rows of several ranks that are more than the dense tensor: that one is reduced, so the row whose sum is zero is left out.
    indices = np.array([9, 8, 7, 6, 5, 3, 2, 1, 0, 0])
    parts = tf.constant(np.stack([indices, -indices], 1) * (rank + 1), tf.float32)
    for call in (st.all_reduce, tf.function(st.all_reduce)):
        found = call(tf.IndexedSlices(parts, tf.constant(indices, tf.int32), tf.constant([10, 2])), "avg")
        assert found.indices.numpy().tolist() == [*([0] if size == 1 else []), 1, 2, 3, 5, 6, 7, 8, 9] and found.indices.dtype == tf.int32
        assert (found.values.numpy() == np.outer(found.indices, [1, -1]) * (size + 1) / 2).all()
    for index, word in ((10, "beyond its rows"), (-1, "below 0")):
        wrong = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([index]), tf.constant([10, 2]))
        for call in (st.all_reduce, tf.function(st.all_reduce)):
            refused(lambda call=call, wrong=wrong: call(wrong), word)
    # What is wrong on one rank is an error on all, and their next calls meet.
    for culprit in range(size):
        index = 10 if rank == culprit else 3
        one = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([index]), tf.constant([10, 2]))
        for call in (st.all_reduce, tf.function(st.all_reduce)):
            refused(lambda call=call, one=one: call(one), "beyond its rows" if rank == culprit else f"indices of rank {culprit} do not fit")
            found = call(tf.IndexedSlices(tf.ones((1, 2)) * (culprit + 1), tf.constant([3]), tf.constant([10, 2])))
            assert found.values.numpy().tolist() == [[size * (culprit + 1)] * 2]
    short = tf.IndexedSlices(tf.ones((2, 2)), tf.constant([1]), tf.constant([10, 2]))
    refused(lambda: st.all_reduce(short), "as many indices as rows")
    refused(lambda: st.all_reduce(short, "max"), "sum and avg only", error=shouter.ArgumentError)
    # An embedding is trained as by one process with all rows.
    table, whole = tf.Variable(of(0, (20, 4))), tf.Variable(of(0, (20, 4)))
    for step in range(3):
        batches = [np.random.default_rng(100 * step + each).integers(0, 20, 6) for each in range(size)]
        for variable, batch, distributed in ((table, batches[rank], True), (whole, np.concatenate(batches), False)):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.embedding_lookup(variable, batch) ** 2)
            used = st.DistributedGradientTape(tape) if distributed else tape
            gradient = used.gradient(loss, variable)
            assert isinstance(gradient, tf.IndexedSlices)
            keras.optimizers.SGD(0.5).apply([gradient], [variable])
    assert np.allclose(table, whole, atol=1e-5)


def model_of(seed: int) -> Any:
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)])


def data_of(rank: int) -> Any:
    rng = np.random.default_rng(rank)
    return rng.normal(size=(16, 8)).astype("float32"), rng.integers(0, 4, 16)


def a_tape() -> None:
    """As one process with all ranks' data."""
    rank, size = shouter.rank(), shouter.size()
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mine, whole = model_of(rank), model_of(0)
    st.broadcast_variables(mine.variables)
    for own, one in zip(mine.variables, whole.variables):
        same(own.value, np.asarray(one.value, np.float64))
    everything = [np.concatenate(parts) for parts in zip(*(data_of(each) for each in range(size)))]

    def step(model: Any, optimizer: Any, x: Any, y: Any, distributed: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        used = st.DistributedGradientTape(tape) if distributed else tape
        gradients = used.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    for wrap in (lambda call: call, tf.function):
        first, second = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
        first.build(mine.trainable_variables)
        second.build(whole.trainable_variables)
        distributed, alone = wrap(step), wrap(step)
        for _ in range(5):
            distributed(mine, first, *data_of(rank), True)
            alone(whole, second, *everything, False)
        for own, one in zip(mine.variables, whole.variables):
            assert np.allclose(own.value, one.value, atol=1e-5), own.path
        bits = st.all_gather(tf.reshape(mine.variables[0].value, (1, -1))).numpy()
        assert all(np.array_equal(bits[0], other) for other in bits)


def fit() -> None:
    """`model.fit` as one process with the global batch; the callbacks make unequal weights equal, and average the metrics."""
    rank, size = shouter.rank(), shouter.size()
    mine, whole = model_of(rank), model_of(0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = st.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    assert keras.saving.serialize_keras_object(optimizer)["class_name"] == "SGD"
    mine.compile(optimizer, loss, metrics=["accuracy"])
    whole.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    everything = [np.stack(parts, 1).reshape(-1, *parts[0].shape[1:]) for parts in zip(*(data_of(each) for each in range(size)))]
    callbacks = [st.BroadcastGlobalVariables(), st.MetricAverage()]
    mean = mine.fit(*data_of(rank), batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    one = whole.fit(*everything, batch_size=4 * size, epochs=3, shuffle=False, verbose=0)
    for own, other in zip(mine.weights, whole.weights):
        assert np.allclose(own.value, other.value, atol=1e-5), own.path
    for name in ("loss", "accuracy"):
        assert np.allclose(mean.history[name], one.history[name], atol=1e-4), (name, mean.history, one.history)
    # A model that its first batch builds.
    keras.utils.set_random_seed(rank)
    late = keras.Sequential([keras.layers.Dense(4)])
    late.compile(st.DistributedOptimizer(keras.optimizers.Adam()), loss)
    late.fit(*data_of(rank), batch_size=8, verbose=0, callbacks=[st.BroadcastGlobalVariables()])
    kernels = st.all_gather(tf.reshape(late.weights[0].value, (1, -1))).numpy()
    assert all(np.array_equal(kernels[0], other) for other in kernels)


def optimizers() -> None:
    rank = shouter.rank()
    refused(lambda: st.DistributedOptimizer("sgd"), "no optimizer of Keras 3", error=shouter.ArgumentError)
    once = st.DistributedOptimizer(keras.optimizers.SGD())
    refused(lambda: st.DistributedOptimizer(once), "already", error=shouter.ArgumentError)
    assert type(once).from_config(once.get_config()).get_config() == once.get_config()
    # A gradient of one rank that is not finite: all skip the step.
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model, loss = model_of(0), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        refused(lambda: model.compile(st.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss), "compile DistributedOptimizer(LossScaleOptimizer(", error=shouter.ArgumentError)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=64.0)
        model.compile(st.DistributedOptimizer(scaled), loss)
        x, y = data_of(rank)
        if rank == 0:
            x[5] = np.inf
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert (int(scaled.iterations), float(scaled.dynamic_scale)) == (3, 32.0)
    kernels = st.all_gather(tf.reshape(model.weights[0].value, (1, -1))).numpy()
    assert np.isfinite(kernels).all() and all(np.array_equal(kernels[0], other) for other in kernels)
    # A model that was loaded goes on, once its optimizer is wrapped again.
    model = model_of(0)
    model.compile(st.DistributedOptimizer(keras.optimizers.Adam()), loss)
    model.fit(*data_of(rank), verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/saved.keras")
        loaded = keras.models.load_model(f"{folder}/saved.keras")
    assert type(loaded.optimizer) is keras.optimizers.Adam
    st.DistributedOptimizer(loaded.optimizer)
    for each in (model, loaded):
        each.fit(*data_of(rank), shuffle=False, verbose=0)
    for own, other in zip([*model.weights, *model.optimizer.variables], [*loaded.weights, *loaded.optimizer.variables]):
        assert np.array_equal(own.value, other.value), own.path


def groups() -> None:
    rank = shouter.rank()
    half = shouter.world().split(rank % 2, rank)
    peers = range(rank % 2, shouter.size(), 2)
    for found in run(lambda x: st.all_reduce(x, group=half), of(rank)):
        same(found, sum(every()[peer] for peer in peers))


def what_is_refused() -> None:
    rank, size = shouter.rank(), shouter.size()
    st.all_reduce(tf.ones(3), name="one shape")
    refused(lambda: st.all_reduce(tf.ones(4), name="one shape"), "'one shape' is known as all-reduce of 3 x f32, sum", "4 x f32")
    refused(lambda: st.all_reduce(tf.ones(3), "max", name="one shape"), "max")
    refused(lambda: st.all_gather(tf.constant(1.0)), "scalar")
    refused(lambda: st.all_to_all(tf.ones((size, 2)), [size + 1] + [0] * (size - 1)), "the splits add up to")
    refused(lambda: st.all_to_all(tf.ones((size, 2)), [-1] * size), "a count of -1")
    refused(lambda: st.all_to_all(tf.ones(3), [1] * (size + 1)), "give a number of rows for each", error=shouter.ArgumentError)
    refused(lambda: st.broadcast(tf.ones(3), size), "no rank", error=shouter.ArgumentError)
    refused(lambda: st.all_reduce(tf.ones(3), "median"), "median", error=shouter.ArgumentError)
    refused(lambda: st.all_reduce(tf.ones(3), "band"), "there is no band of", error=shouter.ArgumentError)
    refused(lambda: st.all_reduce(tf.constant(["text"])), "string", error=shouter.ArgumentError)
    if size > 1:
        refused(lambda: st.all_to_all(tf.ones(2 * size + 1)), "multiple")
        wrong = (lambda: st.all_reduce(tf.ones(3 + (rank == 1)), name="two shapes"), "'two shapes': rank 1 has all-reduce of 4 x f32")
        refused(wrong[0], *wrong[1:], "rank 0 has all-reduce of 3 x f32")
    # What one rank alone has wrong, all hear of at once.
    for number, wrong in enumerate(([2**60] * size, [2**63 - 1] * size, [2**62] + [-(2**62)] * (size - 1), [size + 1] * size)):
        for at, call in enumerate((st.all_to_all, tf.function(st.all_to_all))):
            words = (f"wrong {number} {at}",) if rank == 0 else ("the splits or indices of rank 0",)
            splits = tf.constant(wrong if rank == 0 else [1] * size, tf.int64)
            refused(lambda call=call, splits=splits, name=f"wrong {number} {at}": call(tf.ones((size, 3)), splits, name=name), *words)
    if size > 1:
        for ragged in (False, True):
            refused(lambda ragged=ragged: st.all_gather(tf.zeros((2**62, 0)), ragged=ragged), "more elements than a tensor can have")
    refused(lambda: st.all_gather(tf.zeros((0, 2**40, 2**40)), ragged=True), "more elements than a tensor can have")
    refused(lambda: st.all_to_all(tf.constant(1.0), [1] * size), "scalar", error=shouter.ArgumentError)
    refused(lambda: st.all_to_all(tf.ones(size), [1.0] * size), "float32", error=shouter.ArgumentError)
    refused(lambda: st.all_reduce(tf.ones(3), name="a\0b"), "NUL", error=shouter.ArgumentError)
    refused(lambda: st.broadcast(tf.ones(3), 0.5), "float", error=TypeError)
    refused(lambda: st.reduce_gradients([tf.ones(3)], []), "1 gradients of 0 variables", error=shouter.ArgumentError)
    refused(lambda: st.all_reduce(tf.IndexedSlices(tf.constant([["a"]]), tf.constant([0]))), "string", error=shouter.ArgumentError)
    # The group goes on.
    same(st.all_reduce(tf.ones(3)), np.full(3, size))


def what_one_rank_refuses() -> None:
    """What one rank alone has wrong, before it submits anything even, is an error on all, and their next calls meet."""
    rank, size = shouter.rank(), shouter.size()
    st.all_reduce(tf.ones(3), name="known")
    slices = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([10, 2]))
    one = tf.Variable(1.0, name="one")
    text, wrong_of_kernel = tf.constant(["text"]), tf.errors.InvalidArgumentError
    calls = [
        (lambda: st.all_reduce(text), lambda: st.all_reduce(tf.ones(3)), "string", shouter.ArgumentError),
        (lambda: st.all_reduce(tf.ones(3), "median"), lambda: st.all_reduce(tf.ones(3)), "median", shouter.ArgumentError),
        (lambda: st.broadcast(tf.ones(3), size), lambda: st.broadcast(tf.ones(3), 0), "no rank", shouter.ArgumentError),
        (lambda: st.all_gather(text), lambda: st.all_gather(tf.ones(3)), "string", shouter.ArgumentError),
        (lambda: st.all_gather(1.0, ragged=True), lambda: st.all_gather(tf.ones(3), ragged=True), "scalar", shouter.ArgumentError),
        (lambda: st.all_gather(1.0), lambda: st.all_gather(tf.ones(3)), "scalar", wrong_of_kernel),
        (lambda: st.all_to_all(tf.ones(size + 1)), lambda: st.all_to_all(tf.ones(size)), "multiple", wrong_of_kernel),
        (lambda: st.reduce_gradients([tf.ones(3), text]), lambda: st.reduce_gradients([tf.ones(3), tf.ones(2)]), "string", shouter.ArgumentError),
        (lambda: st.reduce_gradients([tf.ones(3)], [one, one]), lambda: st.reduce_gradients([tf.ones(3)], [one]), "of 2 variables", shouter.ArgumentError),
        (lambda: st.all_to_all(tf.ones(size), [1]), lambda: st.all_to_all(tf.ones(size), [1] * size), "a number of rows", shouter.ArgumentError),
        (lambda: st.all_reduce(slices, "max"), lambda: st.all_reduce(slices), "sum and avg only", shouter.ArgumentError),
        (lambda: st.all_reduce(tf.ones(4), name="known"), lambda: st.all_reduce(tf.ones(3), name="known"), "is known as", wrong_of_kernel),
    ]
    begun = time.monotonic()
    for number, (wrong, right, words, error) in enumerate(calls):
        for culprit in range(size):
            if rank == culprit:
                refused(wrong, words, error=error)
            else:
                refused(right, f"rank {culprit} refuses its part", words)
            right()
            same(st.all_reduce(tf.constant(number)), number * size)

    # The same while a function is traced, and in its run; and the rest of its run.
    def traced(call: Any) -> Any:
        @tf.function(autograph=False, input_signature=[tf.TensorSpec((None,))])
        def step(x: Any) -> Any:
            before = [st.all_reduce(x) for _ in range(3)]
            found = call(x)
            return [*before, found, *[st.all_reduce(x) for _ in range(3)]]

        return step

    known = lambda x: st.all_reduce(x[:3], name="known")  # noqa: E731
    calls = [
        (traced(lambda x: st.all_reduce(text)), traced(lambda x: st.all_reduce(x)), "string", shouter.ArgumentError),
        (traced(lambda x: st.all_reduce(x, "median")), traced(lambda x: st.all_reduce(x)), "median", shouter.ArgumentError),
        (traced(lambda x: st.all_gather(1.0)), traced(lambda x: st.all_gather(x)), "rank 1", ValueError),
        (traced(lambda x: st.all_gather(1.0, ragged=True)), traced(lambda x: st.all_gather(x, ragged=True)), "scalar", shouter.ArgumentError),
        (traced(lambda x: st.all_to_all(x[1:])), traced(lambda x: st.all_to_all(x)), "multiple", wrong_of_kernel),
        (traced(lambda x: st.all_reduce(x, name="known")), traced(known), "is known as", wrong_of_kernel),
    ]
    for number, (wrong, right, words, error) in enumerate(calls):
        for culprit in range(size):
            x = tf.ones(4 * size)
            if rank == culprit:
                refused(lambda wrong=wrong, x=x: wrong(x), words, error=error)
                # The others are told with the next operation.
                same(st.all_reduce(tf.constant(number), name="told"), number * size)
            else:
                told = threading.Thread(target=lambda number=number: same(st.all_reduce(tf.constant(number), name="told"), number * size))
                told.start()
                refused(lambda right=right, x=x: right(x), f"rank {culprit} refuses its part", words)
                told.join()
            for use in range(1, 3):
                for found in right(x * use)[:3]:
                    same(found, np.full(4 * size, use * size))
    # Two of one name at a time: the one that comes second is refused, and the others' second fails.
    for culprit in range(size):
        name, found, is_refused = f"twice {culprit}", [], threading.Event()

        def submit(name: str = name, found: list[Any] = found, is_refused: Any = is_refused) -> None:
            try:
                found.append(st.all_reduce(tf.ones(3), name=name))
            except wrong_of_kernel as why:
                found.append(str(why))
                is_refused.set()

        if rank == culprit:
            threads = [threading.Thread(target=submit) for _ in range(2)]
            for thread in threads:
                thread.start()
            # The others submit the name only then.
            assert is_refused.wait(30)
            same(st.all_reduce(tf.constant(1), name="the others go on"), size)
            for thread in threads:
                thread.join()
            assert f"'{name}' was submitted before" in found[0], found
            same(found[1], np.full(3, size))
        else:
            same(st.all_reduce(tf.constant(1), name="the others go on"), size)
            same(st.all_reduce(tf.ones(3), name=name), np.full(3, size))
            refused(lambda name=name: st.all_reduce(tf.ones(3), name=name), f"rank {culprit} refuses its part", "was submitted before")
        same(st.all_reduce(tf.ones(3), name=name), np.full(3, size))
    # No rank waited for the deadline, of 60 s.
    assert time.monotonic() - begun < 30


def shapes_that_differ() -> None:
    """Without a name that was given, the library finds it, and the group ends; another `init` makes another one."""
    rank = shouter.rank()
    function = tf.function(lambda x: st.all_reduce(x))
    function(tf.ones(3))
    refused(lambda: st.all_reduce(tf.ones(3 + rank)), "all_reduce", error=(tf.errors.InvalidArgumentError, tf.errors.UnavailableError))
    refused(lambda: st.all_reduce(tf.ones(3)), "all_reduce", error=tf.errors.OpError)
    shouter.abort()
    shouter.init()
    refused(lambda: function(tf.ones(3)), "trace the function anew", error=tf.errors.FailedPreconditionError)
    same(st.all_reduce(tf.ones(3)), np.full(3, shouter.size()))


def a_name_of_one_rank() -> None:
    shouter.abort()
    shouter.init(deadline="3s")
    rank, raised = shouter.rank(), []

    def lonely_call() -> Any:
        return st.all_reduce(tf.ones(3), name="lonely")

    def lonely() -> None:
        try:
            lonely_call()
        except tf.errors.DeadlineExceededError as why:
            raised.append(str(why))

    thread = threading.Thread(target=lonely)
    if rank == 0:
        thread.start()
    # All go on with others meanwhile.
    begun, on = time.monotonic(), True
    while on:
        on = bool(st.all_reduce(tf.constant(int(time.monotonic() - begun < 4)), "min").numpy())
    if rank == 0:
        thread.join()
        assert len(raised) == 1 and "'lonely'" in raised[0] and "not submitted by rank 1 " in raised[0], raised
    else:
        refused(lonely_call, "'lonely': not submitted by rank 1 ", error=tf.errors.DeadlineExceededError)
    for use in range(3):
        same(st.all_reduce(tf.fill(3, use), name="lonely used again"), np.full(3, 2 * use))
        same(lonely_call(), np.full(3, 2))

    # A function's run that one rank is late with, each in turn, is one use of all its names.
    @tf.function
    def together(x: Any) -> Any:
        return tf.stack([st.all_reduce(x + at, name=f"together {at}") for at in range(8)])

    # Traced ahead of the deadlines: on a busy machine that takes seconds.
    together.get_concrete_function(tf.constant(1.0))
    for culprit in range(2):
        failed: list[Exception] = []

        def waits(failed: list[Exception] = failed) -> None:
            try:
                together(tf.constant(1.0))
            except tf.errors.DeadlineExceededError as why:
                failed.append(why)

        thread = threading.Thread(target=waits)
        if rank != culprit:
            thread.start()
        begun, on = time.monotonic(), True
        while on:
            on = bool(st.all_reduce(tf.constant(int(time.monotonic() - begun < 5)), "min").numpy())
        if rank != culprit:
            thread.join()
        else:
            waits()
        assert len(failed) == 1 and f"not submitted by rank {culprit} " in str(failed[0]), failed
        for use in range(3):
            same(together(tf.constant(float(use))), 2.0 * (use + np.arange(8)))
    same(st.all_reduce(tf.ones(3)), np.full(3, 2))
    # The other rank submits nothing at all.
    if rank == 0:
        refused(lambda: st.all_reduce(tf.ones(3), name="alone"), "'alone'", "nothing by rank 1", error=tf.errors.DeadlineExceededError)
    else:
        time.sleep(4)
        refused(lambda: st.all_reduce(tf.ones(3), name="too late"), "'too late'", error=tf.errors.OpError)
    shouter.abort()
    shouter.init()


def snippets() -> None:
    """Those of docs/tensorflow.md, one after the other."""
    shouter.close()
    exec(compile("\n".join(snippets_of("tensorflow.md")), "docs/tensorflow.md", "exec"), {})  # noqa: S102
    shouter.init()


def a_rank_that_is_killed() -> None:
    rank, size = shouter.rank(), shouter.size()
    step = tf.function(lambda x: st.all_reduce(x) / size)
    killed(lambda: step(tf.ones(1000)), rank == 1, tf.errors.UnavailableError)
    shouter.abort()


VALUES = [every_call_with_every_type, rows_that_differ, derivatives, order, control_flow, rows_of_indices, a_tape, fit, optimizers, groups, what_is_refused, what_one_rank_refuses]
# TensorFlow takes seconds of a core to be imported, so there are few processes.
JOBS = {
    "one rank": Job(["-n", "1"], 1, [every_call_with_every_type, rows_that_differ, derivatives, rows_of_indices, what_is_refused]),
    "two hosts": Job(["--hosts", "1,1", "--transport", "kernel"], 2, [every_call_with_every_type, derivatives, order, a_tape, shapes_that_differ]),
    "four ranks": Job(["-n", "4"], 4, VALUES),
    "two ranks": Job(["-n", "2"], 2, [snippets, a_name_of_one_rank, a_rank_that_is_killed], deaths=1),
}
FRAME = Frame(__file__, JOBS, 300, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", SHOUTER_DEADLINE="60s")
start = FRAME.start


# Beside the jobs.


def example(program: str) -> None:
    """Four ranks learn as well as one, to 0.5%, and end with the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(ROOT / "examples/tensorflow/digits.py"), "6"]
        alone = start(*script, folder + "/alone.npz", SHOUTER_SIZE="1", SHOUTER_RANK="0")
        assert alone.returncode == 0, alone.stderr
        four = start(program, "run", "-n", "4", "--", *script, folder + "/%r.npz")
        assert four.returncode == 0, four.stderr
        of_one, *of_ranks = (np.load(f"{folder}/{name}.npz") for name in ("alone", "0", "1", "2", "3"))
        assert abs(of_one["right"] - of_ranks[0]["right"]) <= 0.005 and of_one["right"] > 0.8, (of_one["right"], of_ranks[0]["right"])
        for name in of_one:
            assert all(np.array_equal(of_ranks[0][name], other[name]) for other in of_ranks), name


def no_compiler(_: str) -> None:
    script = """
import os
import shouter, tensorflow as tf, shouter.tensorflow as st
shouter.init()
for os.environ["CXX"] in ("no-such-compiler", "false"):
    try:
        st.all_reduce(tf.ones(3))
    except RuntimeError as why:
        print(why)
"""
    with tempfile.TemporaryDirectory() as folder:
        ended = start(sys.executable, "-c", script, SHOUTER_SIZE="1", SHOUTER_RANK="0", XDG_CACHE_HOME=folder)
        assert ended.returncode == 0, ended.stderr
        missing, _, refused = ended.stdout.partition("\n")
        assert "no-such-compiler" in missing and "apt install g++" in missing, missing
        assert "was not compiled for TensorFlow" in refused, refused
        assert not list(Path(folder, "shouter").glob("tensorflow*")), "what was not compiled is kept"


def without_tensorflow(_: str) -> None:
    ended = start(sys.executable, "-c", "import sys; sys.modules['tensorflow'] = None; import shouter.tensorflow")
    assert ended.returncode == 1 and "pip install tensorflow-cpu" in ended.stderr, ended.stderr


def main() -> None:
    # These wait much of their time, for deadlines, or have one process.
    beside = ("two ranks", "one rank")
    found = [FRAME.of_job(program(), name) for name in JOBS if name not in beside] + [FRAME.of_call(program(), example)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(FRAME.of_job, program(), name) for name in beside]
        calls = [pool.submit(FRAME.of_call, program(), call) for call in (no_compiler, without_tensorflow)]
        found += [each.result() for each in jobs + calls]
    finish(found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        import keras
        import tensorflow as tf

        import shouter
        import shouter.tensorflow as st

        shouter.init()
        FRAME.run_rank(sys.argv[2])
        shouter.close()
    else:
        main()
