"""Training: gradients are reduced over all ranks before they are applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ... import tensorflow as st
from ...errors import ArgumentError
from ...tensorflow._training import changed, names_of, refusals
from .._absent import GROUPS, only_cpus, unsupported, without_effect
from .._job import ProcessSet, global_process_set
from .._reductions import Average, reduction
from ._compression import Compression
from ._operations import group_of, reduce_all


class _Reduction:
    """How gradients are reduced."""

    def __init__(self, call: str, op: str, compression: Any, sparse_as_dense: bool, factor: float, process_set: ProcessSet) -> None:
        self._op = reduction(op, None, call)
        if factor != 1 and self._op != Average:
            raise ArgumentError(f"{call}: gradient_predivide_factor is for op=Average only")
        self._scale, self._compression, self._dense, self._process_set = (1 / factor, factor), compression, sparse_as_dense, process_set

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        names = names_of(gradients, variables)
        if self._dense:
            with refusals(gradients, names, group_of(self._process_set)):
                gradients = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
        return reduce_all(gradients, names, self._op, self._scale, self._compression, self._process_set)

    def refuse(self, gradients: Sequence[Any], variables: Sequence[Any], why: str) -> None:
        """Refuses to reduce, on the other ranks, too."""
        with refusals(gradients, names_of(gradients, variables), group_of(self._process_set)):
            raise ArgumentError(why)


class _Tape(st.DistributedGradientTape):
    """A tape whose gradients are reduced as Horovod says."""

    def __init__(self, tape: tf.GradientTape, reduce: _Reduction) -> None:
        super().__init__(tape)
        self._reduce = reduce

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None, *more: Any, **options: Any) -> Any:
        """As `tf.GradientTape.gradient`, reduced over all ranks."""
        gradients = tf.nest.flatten(self._tape.gradient(target, sources, output_gradients, *more, **options))
        return tf.nest.pack_sequence_as(sources, self._reduce(gradients, tf.nest.flatten(sources)))


def DistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """A tape whose `gradient` is reduced over all ranks. `scale_local_gradients=False` is refused; `num_groups`, `groups` and devices other than CPUs have no effect, which is a warning."""
    _check("DistributedGradientTape", device_dense, device_sparse, num_groups, groups, scale_local_gradients)
    how = (op, compression, sparse_as_dense, gradient_predivide_factor, process_set)
    return _Tape(gradtape, _Reduction("DistributedGradientTape", *how))


def _check(call: str, device_dense: str, device_sparse: str, num_groups: int, groups: Any, scale_local_gradients: bool) -> None:
    only_cpus(call, device_dense=device_dense, device_sparse=device_sparse)
    without_effect(call, GROUPS, num_groups=num_groups, groups=groups)
    if not scale_local_gradients:
        raise ArgumentError(f"{call}: scale_local_gradients=False is not supported; leave it out: there are no variables of one rank alone")


class _Passes:
    """Adds up the gradients of several backward passes."""

    def __init__(self, passes: int, is_mean: bool, refuse: Callable[[Sequence[Any], Sequence[Any], str], None]) -> None:
        self._passes, self._is_mean, self._refuse = passes, is_mean, refuse
        self._sums: list[tf.Variable] = []
        self._count: tf.Variable | None = None

    def add(self, gradients: Sequence[Any], variables: Sequence[Any], apply: Any) -> None:
        """Adds gradients; after the last pass it applies the sums, and begins again. A variable without a gradient has zeroes."""
        known = self._sums or variables
        if len(gradients) != len(known):
            why = f"DistributedOptimizer: {len(gradients)} gradients, and {len(known)} variables; give one for each, or None, in each backward pass"

            def refuse() -> None:
                self._refuse(known, variables, why)

            # In a graph the other ranks reduce theirs inside such a condition.
            return refuse() if tf.executing_eagerly() else tf.cond(tf.constant(True), refuse, lambda: None)
        if self._count is None:
            with tf.init_scope():
                self._count = tf.Variable(0, trainable=False, dtype=tf.int64)
                self._sums = [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in variables]
        for total, gradient in zip(self._sums, gradients):
            if gradient is not None:
                total.assign_add(tf.convert_to_tensor(gradient))
        self._count.assign_add(1)

        def ended() -> None:
            apply([each / tf.cast(self._passes, each.dtype) if self._is_mean else tf.identity(each) for each in self._sums])
            for total in self._sums:
                total.assign(tf.zeros_like(total))

        tf.cond(self._count % self._passes == 0, ended, lambda: None)


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The Keras 3 optimizer `optimizer`, which from now on reduces gradients over all ranks before it applies them, and with
    `backward_passes_per_step` their sums of so many calls (their means with `average_aggregated_gradients`). It is saved as what it was, under its own name: `name` would
    be that of a wrapper, and there is none. `use_locking` and `scale_local_gradients=False` are refused;
    `num_groups`, `groups` and devices other than CPUs have no effect, which is a warning.
    """
    unsupported("DistributedOptimizer", "leave it out: Keras 3's optimizers have no locks", use_locking=use_locking)
    _check("DistributedOptimizer", device_dense, device_sparse, num_groups, groups, scale_local_gradients)
    if backward_passes_per_step < 1:
        raise ArgumentError(f"backward_passes_per_step is {backward_passes_per_step}; give at least 1")
    reduce = _Reduction("DistributedOptimizer", op, compression, sparse_as_dense, gradient_predivide_factor, process_set)
    passes = _Passes(backward_passes_per_step, average_aggregated_gradients, reduce.refuse) if backward_passes_per_step > 1 else None

    def step(self: Any, gradients: list[Any], variables: list[Any], apply: Any) -> Any:
        if passes is None:
            return apply(reduce(gradients, variables))
        if not self.built:
            self.build(variables)
        return passes.add(gradients, variables, lambda sums: apply(reduce(sums, variables)))

    return changed(optimizer, step)
