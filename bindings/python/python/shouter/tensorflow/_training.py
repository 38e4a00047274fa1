"""Training with a replica of the model on each rank: gradients are averaged before they are applied."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from .. import _core
from .._group import Group
from ..errors import ArgumentError
from . import _calls, _sparse


def _variable_name(variable: Any) -> str:
    # Keras's path has the layer's name, too.
    return str(getattr(variable, "path", None) or getattr(variable, "name", "variable"))


def reduce_gradients(
    gradients: Sequence[Any], variables: Sequence[Any] | None = None, op: str = "avg", *, group: Group | None = None
) -> list[Any]:
    """Every rank's gradients, reduced: tensors, `tf.IndexedSlices`, or None. Those of the first variables go first where several are there."""
    return reduce_prepared(gradients, names_of(gradients, variables), op, group, _as_it_is)


def names_of(gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[str]:
    """The names of the gradients' variables, or none for each."""
    return [""] * len(gradients) if variables is None else [_variable_name(variable) for variable in variables]


# What is sent in the place of a gradient, and what makes the result of its reduction.
Prepare = Callable[[Any], tuple[Any, Callable[[Any], Any]]]


def _as_it_is(gradient: Any) -> tuple[Any, Callable[[Any], Any]]:
    return gradient, lambda found: found


def reduce_prepared(gradients: Sequence[Any], names: Sequence[str], op: str, group: Group | None, prepare: Prepare) -> list[Any]:
    """The same of what is made of each gradient; what `prepare` refuses fails on the other ranks, too."""
    if len(names) != len(gradients):
        with refusals(gradients, names, group):
            raise ArgumentError(f"reduce_gradients: {len(gradients)} gradients of {len(names)} variables; give one for each, or None")
    at, scope = _calls.place(group), _scope()
    if not tf.executing_eagerly():
        return _reduced(gradients, names, op, at, scope, prepare)
    given = [gradient for gradient in gradients if gradient is not None]
    of_given = tuple(name for name, gradient in zip(names, gradients) if gradient is not None)
    done = iter(_function(of_given, op, at, scope, prepare)(given) if given else [])
    return [None if gradient is None else next(done) for gradient in gradients]


@contextlib.contextmanager
def refusals(gradients: Sequence[Any], names: Sequence[str], group: Group | None) -> Iterator[None]:
    """What is refused inside, before gradients are reduced, fails on the other ranks, too, where they reduce theirs."""

    def submitted() -> str:
        first = next((number for number, gradient in enumerate(gradients) if gradient is not None), 0)
        named = _calls.Naming(_name_of(_scope(), first, names[first] if first < len(names) else ""), False)
        is_sparse = first < len(gradients) and isinstance(gradients[first], tf.IndexedSlices)
        return _calls.rows_name(named) if is_sparse else named.name

    with _calls.arguments(_calls.place(group).group, submitted, is_of_run=True):
        yield


def _scope() -> str:
    return "eager gradients" if tf.executing_eagerly() else _calls.base("gradients")


def _name_of(scope: str, number: int, name: str) -> str:
    return f"{scope}/{number}/{name}" if name else f"{scope}/{number}"


# Those of groups that have ended are not kept for ever.
@functools.lru_cache(maxsize=64)
def _function(names: tuple[str, ...], op: str, at: _calls.Place, scope: str, prepare: Prepare) -> Any:
    """Eager gradients are reduced by one function, so that they go at the same time."""

    @tf.function(autograph=False, jit_compile=False, reduce_retracing=True)
    def reduced(given: list[Any]) -> list[Any]:
        return _reduced(given, names, op, at, scope, prepare)

    return reduced


def _reduced(gradients: Sequence[Any], names: Sequence[str], op: str, at: _calls.Place, scope: str, prepare: Prepare) -> list[Any]:
    """The same in a graph."""
    found: list[Any] = []
    declared = []
    for number, (gradient, name) in enumerate(zip(gradients, names)):
        if gradient is None:
            found.append(None)
            continue
        named = _calls.Naming(_name_of(scope, number, name), False)
        if isinstance(gradient, tf.IndexedSlices):
            with _calls.arguments(at.group, _calls.rows_name(named)):
                slices, finish = prepare(gradient)
            found.append(finish(_sparse.all_reduce(slices, op, at, named)))
            continue
        with _calls.arguments(at.group, named.name):
            sent, finish = prepare(gradient)
            tensor = _calls.tensor_of(sent, op)
        declared.append(named.name)
        found.append(finish(_calls.all_reduce(tensor, at.group, named, op)))
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
    """The Keras 3 optimizer `optimizer`, which from now on reduces gradients over all ranks before it applies them. It is saved as what it was.

    ArgumentError if it is none of Keras 3, if it does so already, or later, if it is given to a `LossScaleOptimizer`: that one is to be wrapped.
    """
    return changed(optimizer, lambda _, gradients, variables, apply: apply(reduce_gradients(gradients, variables, op, group=group)))


def changed(optimizer: Any, step: Callable[[Any, list[Any], list[Any], Callable[[Sequence[Any]], Any]], Any]) -> Any:
    """The optimizer with another class: to apply gradients is to call `step` with it, them, their variables, and what applies others in their place."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ArgumentError(f"DistributedOptimizer: {optimizer!r} is no optimizer of Keras 3; give it one, as keras.optimizers.SGD(0.1)")
    whole: Any = type(optimizer)
    if hasattr(whole, "_is_distributed"):
        raise ArgumentError("DistributedOptimizer: this optimizer reduces its gradients already; make it once")

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        return step(self, list(grads), list(variables), lambda gradients: whole.apply(self, gradients, trainable_variables))

    def assign(self: Any, name: str, value: Any) -> None:
        # A LossScaleOptimizer takes the scale from the optimizer that it is given, and applies that where this rank's gradients are finite.
        if name == "loss_scale_factor" and value is None and hasattr(self, name):
            raise ArgumentError(
                "DistributedOptimizer inside LossScaleOptimizer, which model.compile makes for the policy mixed_float16: a step whose gradients "
                "are finite on some ranks only would be skipped by the others; compile DistributedOptimizer(LossScaleOptimizer(optimizer))"
            )
        whole.__setattr__(self, name, value)

    members = {
        "apply": apply,
        "__setattr__": assign,
        "_is_distributed": True,
        "__module__": whole.__module__,
        "__doc__": whole.__doc__,
    }
    optimizer.__class__ = type(whole.__name__, (whole,), members)
    return optimizer


@contextlib.contextmanager
def refusals_of_broadcast(variables: Sequence[Any], group: Group | None) -> Iterator[None]:
    """What is refused inside, before variables are broadcast, fails on the other ranks, too, at the first variable."""
    with _calls.arguments(_calls.place(group).group, lambda: _broadcast_name(_calls.base("broadcast"), 0, variables[0]) if variables else "broadcast"):
        yield


def _broadcast_name(scope: str, number: int, variable: Any) -> str:
    return f"{scope}/{number}/{_variable_name(variable)}"


def broadcast_variables(variables: Sequence[Any], root: int = 0, *, group: Group | None = None) -> None:
    """Gives the variables of rank `root`, TensorFlow's or Keras's, to all ranks. In a graph it has to be one's that is run."""
    at = _calls.place(group)
    scope = _calls.base("broadcast")
    for number, variable in enumerate(variables):
        named = _calls.Naming(_broadcast_name(scope, number, variable), False)
        with _calls.arguments(at.group, named.name):
            _calls.check_root(root, at)
            value = _calls.tensor_of(variable, None)
        variable.assign(_calls.bind("broadcast", value, at, named, root=root))
