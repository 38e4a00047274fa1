"""Training with a replica of the model on each rank: gradients are averaged before they are applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .. import _core
from .._group import Group
from . import _calls, _sparse


def _variable_name(variable: Any) -> str:
    # Keras's path has the layer's name, too.
    return str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any] | None = None, op: str = "avg", *, group: Group | None = None
) -> list[Any]:
    """Every rank's gradients, reduced: tensors, `tf.IndexedSlices`, or None. Those of the first variables go first where several are there."""
    at = _calls.place(group)
    names = [_variable_name(variable) for variable in variables] if variables is not None else [""] * len(gradients)
    if not tf.executing_eagerly():
        return _reduced(gradients, names, op, at)
    # As one function, so that they go at the same time.
    given = [gradient for gradient in gradients if gradient is not None]
    of_given = tuple(name for name, gradient in zip(names, gradients) if gradient is not None)
    key = (at, op, of_given)
    if key not in _functions:
        # The names of the last groups are not kept for ever.
        if len(_functions) >= 64:
            _functions.pop(next(iter(_functions)))

        @tf.function(autograph=False, jit_compile=False)
        def reduced(given: list[Any]) -> list[Any]:
            return _reduced(given, of_given, op, at)

        _functions[key] = reduced
    done = iter(_functions[key](given) if given else [])
    return [None if gradient is None else next(done) for gradient in gradients]


_functions: dict[Any, Any] = {}


def _reduced(gradients: Sequence[Any], names: Sequence[str], op: str, at: _calls.Place) -> list[Any]:
    """The same in a graph."""
    scope = _calls.base("gradients")
    found: list[Any] = []
    declared = []
    for number, (gradient, name) in enumerate(zip(gradients, names)):
        if gradient is None:
            found.append(None)
            continue
        named = _calls.Naming(f"{scope}/{number}/{name}" if name else f"{scope}/{number}", False)
        if isinstance(gradient, tf.IndexedSlices):
            found.append(_sparse.all_reduce(gradient, op, at, named))
            continue
        tensor = _calls.tensor_of(gradient, op)
        declared.append(named.name)
        found.append(_calls.bind("all_reduce", tensor, at, named, op=op))
    _core.named_declare(at.group, declared)
    return found


class DistributedGradientTape:
    """A `tf.GradientTape` whose `gradient` is reduced over all ranks: DistributedGradientTape(tape)."""

    def __init__(self, tape: tf.GradientTape, op: str = "avg", *, group: Group | None = None) -> None:
        self._tape, self._op, self._group = tape, op, group

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *why: Any) -> Any:
        return self._tape.__exit__(*why)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def gradient(self, target: Any, sources: Any, *more: Any, **options: Any) -> Any:
        """As `tf.GradientTape.gradient`, reduced over all ranks."""
        gradients = self._tape.gradient(target, sources, *more, **options)
        of = tf.nest.flatten(sources)
        reduced = reduce_gradients(tf.nest.flatten(gradients), of, self._op, group=self._group)
        return tf.nest.pack_sequence_as(sources, reduced)


def DistributedOptimizer(optimizer: Any, op: str = "avg", *, group: Group | None = None) -> Any:  # noqa: N802
    """The Keras 3 optimizer `optimizer`, which from now on reduces gradients over all ranks before it applies them. It is saved as what it was."""
    whole = type(optimizer)

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        grads = reduce_gradients(list(grads), list(variables), op, group=group)
        return whole.apply(self, grads, trainable_variables)

    optimizer.__class__ = type(whole.__name__, (whole,), {"apply": apply, "__module__": whole.__module__, "__doc__": whole.__doc__})
    return optimizer


def broadcast_variables(variables: Sequence[Any], root: int = 0, *, group: Group | None = None) -> None:
    """Gives the variables of rank `root`, TensorFlow's or Keras's, to all ranks. In a graph it has to be one's that is run."""
    at = _calls.place(group)
    _calls.check_root(root, at)
    scope = _calls.base("broadcast")
    for number, variable in enumerate(variables):
        value = _calls.tensor_of(variable, None)
        named = _calls.Naming(f"{scope}/{number}/{_variable_name(variable)}", False)
        variable.assign(_calls.bind("broadcast", value, at, named, root=root))
