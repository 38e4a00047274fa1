"""Checks shouter.horovod.tensorflow: jobs of three ranks that run the checks below. Ends with `N passed, N failed, N skipped`.

    python tests/tensorflow/horovod_checks.py [PROGRAM]

Runs with the interpreter whose TensorFlow is to be tested, and with the package `shouter` on PYTHONPATH. PROGRAM is `shouter`, else the one in PATH.
"""

from __future__ import annotations

import inspect
import operator
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frame"))

import checks_frame  # noqa: E402
from checks_frame import Frame, Job, finish, numbers, program  # noqa: E402

SIZE = 3


# The checks, each by all ranks of a job. Every rank knows every other's arrays.


def of(rank: int, shape: tuple[int, ...] = (4, 3), dtype: Any = "float32") -> Any:
    return tf.cast(numbers(rank, shape), dtype)


def every(*arguments: Any) -> Any:
    return np.stack([np.asarray(of(rank, *arguments)) for rank in range(SIZE)])


def same(found: Any, wanted: Any) -> None:
    found = np.asarray(tf.cast(found, tf.float64))
    assert np.array_equal(found, np.asarray(wanted)), (found, wanted)


def refused(call: Any, *words: str, error: Any = None) -> None:
    checks_frame.refused(call, *words, error=error or shouter.ArgumentError)


def both(call: Any, *inputs: Any) -> list[Any]:
    """What it returns eagerly, and as a function."""
    return [call(*inputs), tf.function(call, autograph=False)(*inputs)]


def the_job() -> None:
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (shouter.rank(), SIZE, shouter.rank(), SIZE)
    assert hvd.is_initialized() and hvd.is_homogeneous() and (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    hvd.barrier()


def reductions_of_every_kind() -> None:
    own, whole = of(hvd.rank()), every()
    wanted = {hvd.Sum: whole.sum(0), hvd.Min: whole.min(0), hvd.Max: whole.max(0), hvd.Product: whole.prod(0)}
    for op, result in wanted.items():
        for found in both(lambda x, op=op: hvd.allreduce(x, op=op), own):
            same(found, result)
    for found in both(hvd.allreduce, own):
        assert np.allclose(found, whole.mean(0))
    same(hvd.allreduce(own, average=False, name="older way"), whole.sum(0))
    same(hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0), whole.sum(0) * 2)
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        found = hvd.allreduce(own, op=hvd.Sum, compression=compression)
        assert found.dtype == tf.float32
        same(found, whole.sum(0))
        same(hvd.allreduce(tf.cast(own, tf.int64), op=hvd.Sum, compression=compression), whole.sum(0))
    for parts in both(lambda x: hvd.grouped_allreduce([x, 2 * x, None], op=hvd.Sum, compression=hvd.Compression.fp16), own):
        same(parts[0], whole.sum(0))
        same(parts[1], 2 * whole.sum(0))
        assert parts[2] is None and parts[0].dtype == tf.float32


def slices() -> None:
    rank = hvd.rank()
    own = tf.IndexedSlices(of(rank, (3, 2)), tf.constant([0, 3 + rank, 0]), tf.constant([9, 2]))
    wanted = sum(np.asarray(tf.convert_to_tensor(tf.IndexedSlices(of(each, (3, 2)), tf.constant([0, 3 + each, 0]), tf.constant([9, 2])))) for each in range(SIZE))
    found = hvd.allreduce(own, op=hvd.Sum)
    assert isinstance(found, tf.IndexedSlices) and found.indices.numpy().tolist() == [0, 3, 4, 5]
    same(tf.convert_to_tensor(found), wanted)
    assert np.allclose(tf.convert_to_tensor(hvd.allreduce(own)), wanted / SIZE)
    same(tf.convert_to_tensor(hvd.allreduce(own, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)), 2 * wanted)
    refused(lambda: hvd.allreduce(own, op=hvd.Max), "sum and avg only")


def moves() -> None:
    rank = hvd.rank()
    rows = [of(each, (each, 2)) for each in range(SIZE)]
    for found in both(hvd.allgather, rows[rank]):
        same(found, np.concatenate(rows))
    for root in range(SIZE):
        for found in both(lambda x, root=root: hvd.broadcast(x, root), of(rank)):
            same(found, of(root))
    mine = 10 * rank + tf.reshape(tf.range(6), (6, 1))
    # Rank i gives j + 1 rows to rank j.
    output, received = hvd.alltoall(mine, splits=[1, 2, 3])
    first = [0, 1, 3][rank]
    assert received.numpy().tolist() == [rank + 1] * SIZE
    same(tf.reshape(output, -1), np.concatenate([10 * each + np.arange(first, first + rank + 1) for each in range(SIZE)]))
    same(tf.reshape(hvd.alltoall(mine), -1), np.concatenate([10 * each + np.arange(2 * rank, 2 * rank + 2) for each in range(SIZE)]))
    part = every((6, 2)).sum(0)[2 * rank : 2 * rank + 2]
    same(hvd.reducescatter(of(rank, (6, 2)), op=hvd.Sum), part)
    assert np.allclose(hvd.reducescatter(of(rank, (6, 2))), part / SIZE)
    # The first ranks have one row more where the ranks do not divide them; numpy splits so, too.
    for rows in (1, 2, 4, 5):
        wanted = np.array_split(every((rows, 2)).sum(0), SIZE)
        for found in both(lambda x: hvd.reducescatter(x, op=hvd.Sum), of(rank, (rows, 2))):
            same(found, wanted[rank])
        with tf.GradientTape() as tape:
            x = of(rank, (rows, 2))
            tape.watch(x)
            loss = (rank + 1) * tf.reduce_sum(hvd.reducescatter(x, op=hvd.Sum))
        same(tape.gradient(loss, x), np.concatenate([np.full(part.shape, each + 1) for each, part in enumerate(wanted)]))
    assert hvd.broadcast_object({"from": rank}, 2) == {"from": 2} and hvd.allgather_object("x" * rank) == ["", "x", "xx"]
    variables = [tf.Variable(of(rank)), tf.Variable(of(rank, (5,), "int32"))]
    hvd.broadcast_variables(variables, root_rank=1)
    same(variables[0], of(1))
    same(variables[1], of(1, (5,), "int32"))


def tapes() -> None:
    rank = hvd.rank()
    weight, table = tf.Variable(tf.ones((3,))), tf.Variable(tf.ones((9, 2)))

    def gradients(**keywords: Any) -> Any:
        with hvd.DistributedGradientTape(tf.GradientTape(), **keywords) as tape:
            loss = tf.reduce_sum(weight * (rank + 1.0)) + tf.reduce_sum(tf.gather(table, [7, 7, rank]))
        return tape.gradient(loss, [weight, table])

    def step(**keywords: Any) -> Any:
        return [lambda: gradients(**keywords), tf.function(lambda: gradients(**keywords), autograph=False)]

    expected = np.zeros((9, 2))
    expected[7], expected[:3] = 2.0, 1 / SIZE
    for keywords in ({}, {"gradient_predivide_factor": 2.0}, {"compression": hvd.Compression.fp16}, {"sparse_as_dense": True}, {"op": hvd.Sum}):
        factor = SIZE if keywords.get("op") == hvd.Sum else 1
        for call in step(**keywords):
            of_weight, of_table = call()
            assert np.allclose(of_weight, np.full(3, 2.0) * factor), (keywords, of_weight)
            assert isinstance(of_table, tf.IndexedSlices) != ("sparse_as_dense" in keywords)
            assert np.allclose(tf.convert_to_tensor(of_table), expected * factor), keywords


def model() -> Any:
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])


def batch(step: int, rank: int) -> tuple[Any, Any]:
    random = np.random.default_rng(1000 * step + rank)
    return random.standard_normal((4, 6)).astype("float32"), random.standard_normal((4, 3)).astype("float32")


def gradients_of(net: Any, step: int, rank: int) -> list[Any]:
    rows, wanted = batch(step, rank)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(rows) - wanted) ** 2)
    return tape.gradient(loss, net.trainable_variables)


def one_process(steps: int, passes: int = 1, factor: float = 1.0) -> list[Any]:
    """The weights after training with the batches of all ranks in one process."""
    net = model()
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    for step in range(steps):
        every_one = [gradients_of(net, step * passes + part, rank) for part in range(passes) for rank in range(SIZE)]
        optimizer.apply([sum(of_variable) * factor / SIZE for of_variable in zip(*every_one)], net.trainable_variables)
    return [np.asarray(each) for each in net.trainable_variables]


def alike(net: Any, wanted: list[Any], tolerance: float = 1e-6) -> None:
    own = [np.asarray(each) for each in net.trainable_variables]
    for found, other in zip(own, wanted):
        assert np.allclose(found, other, rtol=tolerance, atol=tolerance), np.abs(found - other).max()
    texts = hvd.allgather_object([each.tobytes() for each in own])
    assert all(text == texts[0] for text in texts), "the bits differ between ranks"


def optimizers() -> None:
    for keywords, tolerance in (({}, 1e-6), ({"gradient_predivide_factor": 2.0}, 1e-6), ({"compression": hvd.Compression.bf16}, 2e-2)):
        for compiled in (False, True):
            net = model()
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), **keywords)
            assert isinstance(optimizer, keras.optimizers.SGD)
            apply = tf.function(lambda given, o=optimizer, n=net: o.apply(given, n.trainable_variables), autograph=False) if compiled else (
                lambda given, o=optimizer, n=net: o.apply(given, n.trainable_variables)
            )  # fmt: skip
            optimizer.build(net.trainable_variables)
            for step in range(3):
                apply(gradients_of(net, step, hvd.rank()))
            alike(net, one_process(3), tolerance)


def backward_passes() -> None:
    for is_mean in (False, True):
        for compiled in (False, True):
            net = model()
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1, momentum=0.9), backward_passes_per_step=2, average_aggregated_gradients=is_mean
            )
            optimizer.build(net.trainable_variables)

            def apply(given: Any, optimizer: Any = optimizer, net: Any = net) -> None:
                optimizer.apply(given, net.trainable_variables)

            call = tf.function(apply, autograph=False) if compiled else apply
            for step in range(6):
                before = [np.asarray(each) for each in net.trainable_variables]
                call(gradients_of(net, step, hvd.rank()))
                moved = any((np.asarray(each) != old).any() for each, old in zip(net.trainable_variables, before))
                assert moved == (step % 2 == 1), step
            alike(net, one_process(3, passes=2, factor=0.5 if is_mean else 1.0))


def fitting() -> None:
    """Keras's own loop, with the callbacks."""
    import shouter.horovod.tensorflow.keras as hvd_keras

    keras.utils.set_random_seed(100 + hvd.rank())
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    net.compile(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.3)), "mse")
    rates = []

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(np.asarray(self.model.optimizer.learning_rate)))

    of_hvd = hvd_keras.callbacks
    rows, wanted = batch(0, hvd.rank())
    history = net.fit(
        np.concatenate([rows] * 2), np.concatenate([wanted] * 2), batch_size=2, epochs=4, shuffle=False, verbose=0,
        callbacks=[
            of_hvd.BroadcastGlobalVariablesCallback(0),
            of_hvd.MetricAverageCallback(),
            of_hvd.LearningRateWarmupCallback(0.3, warmup_epochs=2),
            of_hvd.LearningRateScheduleCallback(0.3, 0.1, start_epoch=2),
            Rates(),
        ],
    )  # fmt: skip
    alike(net, [np.asarray(each) for each in net.trainable_variables])
    losses = hvd.allgather_object(history.history["loss"])
    assert all(each == losses[0] for each in losses), losses
    # From a third of 0.3 to all of it in eight batches; a tenth in the epoch after the schedule's first.
    assert np.allclose(rates, [0.1 + 0.2 * (at + 1) / 8 for at in range(8)] + [0.3] * 4 + [0.03] * 4), rates
    path = Path(tempfile.mkdtemp(), "model.keras")
    net.save(path)
    assert type(keras.models.load_model(path).optimizer) is keras.optimizers.SGD


# What Horovod 0.28.1 has, in its order; what comes behind these here is given by name.
SIGNATURES = {
    "init": "comm process_sets",
    "allreduce": "tensor average device_dense device_sparse compression op prescale_factor postscale_factor name process_set ignore_name_scope",
    "grouped_allreduce": "tensors average device_dense device_sparse compression op prescale_factor postscale_factor process_set ignore_name_scope name",
    "allgather": "tensor name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "reducescatter": "tensor device_dense compression op name process_set ignore_name_scope prescale_factor postscale_factor",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_object": "obj root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "DistributedGradientTape": "gradtape device_dense device_sparse compression sparse_as_dense op gradient_predivide_factor num_groups groups process_set "
    "scale_local_gradients",
    "DistributedOptimizer": "optimizer name use_locking device_dense device_sparse compression sparse_as_dense backward_passes_per_step op "
    "gradient_predivide_factor average_aggregated_gradients num_groups groups process_set scale_local_gradients",
}
OF_KERAS = {
    "allreduce": "value name average prescale_factor postscale_factor op compression",
    "allgather": "value name",
    "broadcast": "value root_rank name",
    "reducescatter": "value name op",
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense gradient_predivide_factor op backward_passes_per_step "
    "average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank device local_variables",
    "callbacks.MetricAverageCallback": "device",
    "callbacks.LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase momentum_correction steps_per_epoch",
    "callbacks.LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction steps_per_epoch verbose",
}


def arguments_in_horovods_order() -> None:
    import shouter.horovod.tensorflow.keras as hvd_keras

    for module, signatures in ((hvd, SIGNATURES), (hvd_keras, OF_KERAS)):
        for name, wanted in signatures.items():
            found = inspect.signature(operator.attrgetter(name)(module)).parameters.values()
            positional = [each.name for each in found if each.kind is each.POSITIONAL_OR_KEYWORD]
            assert positional == wanted.split(), (module.__name__, name, positional)
    own, whole = of(hvd.rank(), (6, 2)), every((6, 2))
    same(hvd_keras.allreduce(own, "a constant", False), whole.sum(0))
    assert np.allclose(hvd_keras.allreduce(own, "a constant"), whole.mean(0))
    # The name is the constant's, so another shape may have it, too.
    same(hvd_keras.allreduce(own[0], "a constant", None, 0.5, 4.0, hvd_keras.Sum, hvd_keras.Compression.fp16), 2 * whole[:, 0].sum(0))
    same(hvd_keras.allgather([hvd.rank()], "ranks"), range(SIZE))
    same(hvd_keras.broadcast(own, 1, "from one"), of(1, (6, 2)))
    same(hvd_keras.reducescatter(own, "parts", hvd_keras.Sum), whole.sum(0)[2 * hvd.rank() : 2 * hvd.rank() + 2])
    same(hvd.alltoall(own, [2, 2, 2], "moved", True)[0], np.concatenate([whole[each][2 * hvd.rank() : 2 * hvd.rank() + 2] for each in range(SIZE)]))
    same(hvd.grouped_allreduce([own], None, "/cpu:0", "/cpu:0", hvd.Compression.none, hvd.Sum, 1.0, 2.0, hvd.global_process_set, True, "group")[0], 2 * whole.sum(0))
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(1.0), None, "", "", hvd.Compression.none, False, 2.0, hvd_keras.Average, 1)
    weight = tf.Variable(tf.zeros((2,)))
    optimizer.apply([tf.fill((2,), 3.0 * hvd.rank())], [weight])
    assert np.allclose(weight, -3.0)


def what_is_not_there() -> None:
    """It is refused by its name, with what to do."""
    import shouter.horovod.tensorflow.keras as hvd_keras

    own, callbacks = tf.ones((3,)), hvd_keras.callbacks
    for call, words in (
        (lambda: hvd.init(comm=[0, 1]), "comm=[0, 1] is not supported; leave it out"),
        (lambda: hvd.allreduce(own, ignore_name_scope=True), "ignore_name_scope=True is not supported; give a name"),
        (lambda: hvd.grouped_allreduce([own], ignore_name_scope=True), "ignore_name_scope"),
        (lambda: hvd.allgather(own, None, True), "allgather: ignore_name_scope"),
        (lambda: hvd.broadcast(own, 0, None, True), "broadcast: ignore_name_scope"),
        (lambda: hvd.alltoall(own, None, None, True), "alltoall: ignore_name_scope"),
        (lambda: hvd.broadcast_variables([tf.Variable(own)], 0, inplace=True), "broadcast_variables: inplace=True"),
        (lambda: hvd.broadcast_object(1, 0, "a session"), "session='a session'"),
        (lambda: hvd.allgather_object(1, "a session"), "session='a session'"),
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), use_locking=True), "use_locking=True"),
        (lambda: hvd_keras.DistributedOptimizer(keras.optimizers.SGD(), scale_local_gradients=False), "scale_local_gradients=False"),
        (lambda: hvd.join(hvd.ProcessSet([0, 1])), "join: process_set=ProcessSet([0, 1]) is not supported; call join() without it"),
    ):
        refused(call, words)
    # What says only how fast it is has no effect.
    for call, words in (
        (lambda: hvd.allreduce(own, None, "/gpu:0"), "allreduce: device_dense='/gpu:0' has no effect: all runs on the CPU"),
        (lambda: hvd.allreduce(own, device_sparse="/gpu:1"), "device_sparse='/gpu:1'"),
        (lambda: hvd.grouped_allreduce([own], device_dense="/gpu:0"), "grouped_allreduce: device_dense="),
        (lambda: hvd.reducescatter(own, "/gpu:0"), "reducescatter: device_dense"),
        (lambda: hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2), "num_groups=2 has no effect: the key fuse_below"),
        (lambda: hvd.DistributedGradientTape(tf.GradientTape(), "/gpu:0"), "device_dense"),
        (lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), groups=3), "groups=3"),
        (lambda: callbacks.BroadcastGlobalVariablesCallback(0, "/gpu:0"), "device='/gpu:0'"),
        (lambda: callbacks.MetricAverageCallback("/gpu:0"), "device='/gpu:0'"),
    ):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            call()
        assert any(words in str(warning.message) for warning in given), (words, given)
    for module, name, words in (
        (hvd, "broadcast_global_variables", "call broadcast_variables with the model's and the optimizer's variables"),
        (hvd, "rank_op", "call rank()"),
        (hvd, "mpi_built", "there is neither MPI"),
        (hvd_keras, "load_model", "keras.models.load_model"),
        (hvd, "never_heard_of", "has no attribute"),
    ):
        refused(lambda: getattr(module, name), name, words, error=AttributeError)
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    net.set_weights([np.full(each.shape, hvd.rank()) for each in net.weights])
    net.compile(keras.optimizers.SGD(0.0, momentum=0.9), "mse")
    local = [net.weights[0], net.weights[3].value]
    schedule = callbacks.LearningRateScheduleCallback(0.0, 1.0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        # A rank's variables of its own stay as they are.
        net.fit(np.ones((1, 6)), np.ones((1, 2)), verbose=0, callbacks=[callbacks.BroadcastGlobalVariablesCallback(1, "", local), schedule])
    assert [np.unique(each).tolist() for each in net.get_weights()] == [[hvd.rank()], [1], [1], [hvd.rank()]]
    assert any("momentum_correction is not supported" in str(each.message) for each in said), said


def sets_of_ranks() -> None:
    pair = hvd.add_process_set([2, 0])
    if pair.included():
        same(hvd.allreduce(tf.ones((2,)), op=hvd.Sum, name="in a set", process_set=pair), [2.0, 2.0])
        hvd.barrier(pair)
    else:
        refused(lambda: hvd.allreduce(tf.ones((2,)), process_set=pair), "rank 1 is not in ProcessSet([0, 2])")
    assert hvd.remove_process_set(pair)


def ranks_that_run_out_of_data() -> None:
    """Those take part with zeroes, eagerly and in functions, until the last has joined."""
    rank, counts = hvd.rank(), (2, 4, 0)
    reduce = tf.function(lambda x: [hvd.allreduce(x, op=hvd.Sum), hvd.allreduce(2 * x)], autograph=False)
    # Rank 1 is the last; rank 2 has less than rank 0.
    for at in range(counts[rank]):
        left = sum(at < each for each in counts)
        same(hvd.allreduce(tf.fill((5,), 3.0), name="a name", op=hvd.Sum), np.full(5, 3.0 * left))
        # The mean is that of all ranks.
        assert np.allclose(hvd.allreduce(tf.fill((at + 2,), 3.0)), np.full(at + 2, float(left)))
        same(hvd.allreduce(tf.constant([at + 1], tf.int64), op=hvd.Sum), [left * (at + 1)])
        same(hvd.allreduce(tf.fill((3,), 0.5), op=hvd.Sum, compression=hvd.Compression.bf16), np.full(3, 0.5 * left))
        total, mean = reduce(tf.fill((at + 1,), 3.0))
        same(total, np.full(at + 1, 3.0 * left))
        assert np.allclose(mean, np.full(at + 1, 2.0 * left))
        for parts in both(lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Sum), tf.ones((4,))):
            same(parts[1], np.full(4, 2.0 * left))
        hvd.barrier()
    assert hvd.join() == 1
    same(hvd.allreduce(tf.ones((1,)), op=hvd.Sum), [SIZE])
    # Without a reduction between the ranks, it is the highest.
    assert hvd.join() == SIZE - 1
    hvd.barrier()
    # Each rank trains as long as it has batches; the last has made every step, with the gradients that there were.
    for compiled in (False, True):
        net, steps = model(), (3, 1, 2)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
        optimizer.build(net.trainable_variables)

        def apply(given: Any, optimizer: Any = optimizer, net: Any = net) -> None:
            optimizer.apply(given, net.trainable_variables)

        call = tf.function(apply, autograph=False) if compiled else apply
        for step in range(steps[rank]):
            call(gradients_of(net, step, rank))
        assert hvd.join() == 0
        hvd.broadcast_variables(net.trainable_variables, root_rank=0)
        alone = model()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        for step in range(max(steps)):
            each = [gradients_of(alone, step, other) for other in range(SIZE) if step < steps[other]]
            optimizer.apply([sum(of_variable) / SIZE for of_variable in zip(*each)], alone.trainable_variables)
        alike(net, [np.asarray(each) for each in alone.trainable_variables])


def what_a_joined_rank_refuses() -> None:
    """All else that a rank calls is an error there that says who has joined, and the group goes on."""
    own = tf.ones((3, 2))
    rows = tf.IndexedSlices(own, tf.constant([0, 1, 2]), tf.constant([9, 2]))
    calls = [
        lambda: hvd.allreduce(own, op=hvd.Max),
        lambda: hvd.allreduce(rows),
        lambda: hvd.allgather(own),
        lambda: hvd.broadcast(own, 0),
        lambda: hvd.alltoall(own),
        lambda: hvd.alltoall(own, splits=[1, 1, 1]),
        lambda: hvd.reducescatter(own),
        lambda: tf.function(hvd.allgather)(own),
    ]
    ours = [lambda: hvd.broadcast_object(1, 0), lambda: hvd.allgather_object(1), lambda: hvd.add_process_set([0, 1])]
    for joined in (0, 2):
        if hvd.rank() != joined:
            for call in calls:
                refused(call, f"rank {joined} has joined", error=tf.errors.InvalidArgumentError)
            for call in ours:
                refused(call, f"rank {joined} has joined")
            same(hvd.allreduce(own, op=hvd.Sum), 2 * np.ones((3, 2)))
            # What is wrong on one rank, the other hears of meanwhile.
            if hvd.rank() == 1:
                refused(lambda: st.all_reduce(own, "median"), "median")
            else:
                refused(lambda: st.all_reduce(own), "rank 1 refuses its part", "median", error=tf.errors.InvalidArgumentError)
            same(hvd.allreduce(own, op=hvd.Sum), 2 * np.ones((3, 2)))
        hvd.join()
        same(hvd.allreduce(own, op=hvd.Sum), 3 * np.ones((3, 2)))


def arguments() -> None:
    own = tf.ones((2,))
    refused(lambda: hvd.allreduce(own, op=hvd.Adasum), "Adasum is not supported")
    refused(lambda: hvd.allreduce(own, op="median"), "no reduction")
    refused(lambda: hvd.allreduce(own, average=True, op=hvd.Sum), "both op and average")
    refused(lambda: hvd.allreduce(tf.ones((2,), tf.int32), op=hvd.Sum, prescale_factor=0.5), "numbers with a fraction")
    refused(lambda: hvd.broadcast(own, 3), "root 3 is no rank")
    refused(lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Sum, gradient_predivide_factor=2.0), "op=Average only")
    refused(lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0), "at least 1")
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    refused(lambda: hvd.DistributedOptimizer(optimizer), "already")
    refused(lambda: hvd.DistributedOptimizer("sgd"), "no optimizer of Keras 3")
    refused(lambda: hvd.reducescatter(tf.constant(1.0)), "scalar", error=tf.errors.InvalidArgumentError)
    # What one rank alone has wrong, the others hear of at once, and the next calls meet.
    rows = tf.IndexedSlices(own[None], tf.constant([0]), tf.constant([9, 2]))
    variables = [tf.Variable(own), tf.Variable(own)]
    passes = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0), backward_passes_per_step=2)
    in_graphs = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0), backward_passes_per_step=2)
    for each in (optimizer, passes, in_graphs):
        each.build(variables)
    compiled = tf.function(lambda given: in_graphs.apply(given, variables), autograph=False)
    # The first call makes variables, which TensorFlow permits in no other one.
    for _ in range(2):
        compiled([own, own])

    def graph(**keywords: Any) -> Any:
        return tf.function(lambda: hvd.grouped_allreduce([own, own], **keywords), autograph=False)()

    calls = [
        (lambda: hvd.allreduce(own, op="median"), lambda: hvd.allreduce(own), "no reduction"),
        (lambda: hvd.reducescatter(tf.ones((3,)), op="median"), lambda: hvd.reducescatter(tf.ones((3,))), "no reduction"),
        (lambda: hvd.grouped_allreduce([own, tf.constant(["text"])]), lambda: hvd.grouped_allreduce([own, own]), "string"),
        (lambda: hvd.grouped_allreduce([own, own], op="median"), lambda: hvd.grouped_allreduce([own, own]), "no reduction"),
        (lambda: hvd.grouped_allreduce([rows], op=hvd.Sum, average=True), lambda: hvd.grouped_allreduce([rows]), "both op and average"),
        (lambda: graph(op="median"), lambda: graph(), "no reduction"),
        (lambda: hvd.broadcast_variables(variables, 3), lambda: hvd.broadcast_variables(variables, 0), "root 3 is no rank"),
        (lambda: hvd.broadcast_variables(variables, 0, inplace=True), lambda: hvd.broadcast_variables(variables, 0), "inplace=True"),
        (lambda: hvd.allgather(own, None, True), lambda: hvd.allgather(own), "ignore_name_scope"),
        (lambda: hvd.broadcast_object(1, 0, "a session"), lambda: hvd.broadcast_object(1), "session='a session'"),
        (lambda: optimizer.apply([own], variables), lambda: optimizer.apply([own, own], variables), "1 gradients of 2 variables"),
        (lambda: passes.apply([own], variables), lambda: [passes.apply([own, own], variables) for _ in range(2)], "1 gradients, and 2 variables"),
        (lambda: compiled([own]), lambda: [compiled([own, own]) for _ in range(2)], "1 gradients, and 2 variables"),
    ]
    begun = time.monotonic()
    for wrong, right, words in calls:
        for culprit in range(SIZE):
            if hvd.rank() == culprit:
                refused(wrong, words)
            else:
                # Those of objects are Horovod's, and no operations of the graph.
                refused(right, f"rank {culprit} refuses its part", words, error=(tf.errors.InvalidArgumentError, shouter.ArgumentError))
            for use in range(1, 3):
                right()
                same(hvd.allreduce(tf.constant(use), op=hvd.Sum), use * SIZE)
    assert time.monotonic() - begun < 50


CHECKS = [
    the_job,
    reductions_of_every_kind,
    slices,
    moves,
    tapes,
    optimizers,
    backward_passes,
    fitting,
    arguments_in_horovods_order,
    what_is_not_there,
    sets_of_ranks,
    ranks_that_run_out_of_data,
    what_a_joined_rank_refuses,
    arguments,
]


FRAME = Frame(
    __file__,
    {"Horovod": Job(["-n", str(SIZE), "--cores", "none"], SIZE, CHECKS)},
    300,
    TF_CPP_MIN_LOG_LEVEL="2",
    TF_ENABLE_ONEDNN_OPTS="0",
    CUDA_VISIBLE_DEVICES="-1",
    SHOUTER_DEADLINE="60s",
)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        import keras
        import tensorflow as tf

        import shouter
        import shouter.horovod.tensorflow as hvd
        import shouter.tensorflow as st

        hvd.init()
        FRAME.run_rank(sys.argv[2])
        hvd.shutdown()
    else:
        with tempfile.TemporaryDirectory() as folder:
            FRAME.variables["SHOUTER_DUMP_FOLDER"] = folder
            found = FRAME.of_job(program(), "Horovod")
        finish([found])
