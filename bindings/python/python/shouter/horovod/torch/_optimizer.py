"""An optimizer whose gradients are reduced over all ranks while the backward pass goes on."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..._group import Group, Tensor
from ...errors import ArgumentError
from ...torch._sparse import Reduction, check as check_sparse, without_rows
from ...torch._tensors import name_of
from .._absent import GROUPS, without_effect
from .._job import ProcessSet, global_process_set
from .._reductions import Average, reduction
from .._turns import ORDER, REDUCTIONS, STEP, refusals, tell
from ._compression import Compression
from ._operations import Handle, begin, begin_sparse, members, prepared


class _Gradients:
    """The gradients of an optimizer's parameters, which start in one order on all ranks: at first from the last parameter to the first, and
    after the first step as they came on rank 0.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        group: Group,
        compression: Any,
        passes: int,
        op: str,
        factor: float,
        sparse_as_dense: bool,
    ) -> None:
        self.named = {parameter: name for name, parameter in named if parameter.requires_grad}
        self._group, self._compression, self._sparse_as_dense = group, compression, sparse_as_dense
        self._op, self._scale = op, (1 / factor, factor)
        self.passes = passes
        types = {parameter: name_of(compression.type_of(parameter.dtype), name) for parameter, name in self.named.items()}
        # What is needed first in the next forward pass is the most urgent.
        numbers = group.register([Tensor(name, parameter.numel(), types[parameter], op) for parameter, name in self.named.items()])
        self._numbers = dict(zip(self.named, numbers))
        self._order = list(reversed(self.named))
        self._is_first_step = True
        # The sparse dimensions of gradients that have been sparse.
        self._sparse: dict[torch.nn.Parameter, int] = {}
        # Gradients of several devices come on a thread each.
        self._lock = threading.Lock()
        self.begin_again()
        # A parameter's gradient is complete when its accumulator, which only its users refer to, has run.
        self._accumulators = [self._watch(parameter) for parameter in self.named]

    def begin_again(self) -> None:
        """The next backward pass is the first of a step."""
        self._is_told = False
        self._left = dict.fromkeys(self.named, self.passes)
        # Those that have come, in their order; those that were started, by the common order.
        # A sparse one is not prepared.
        self._come: dict[torch.nn.Parameter, tuple[torch.Tensor, Callable[[], Any] | None]] = {}
        self.handles: list[Handle] = []

    def stand_in(self) -> None:
        """Takes part with zeroes in a step that other ranks make."""
        kept = [(parameter, parameter.grad) for parameter in self.named]
        for parameter in self.named:
            parameter.grad = None
        # Those that make the step have told it.
        self._is_told = True
        try:
            self._reduce_all()
        finally:
            self.begin_again()
            for parameter, gradient in kept:
                parameter.grad = gradient

    def check_join(self) -> None:
        """Refuses to join where it cannot stand in."""
        self.check_idle("join()")
        if self._op not in REDUCTIONS:
            raise ArgumentError(f"join(): an optimizer reduces by {self._op}, which zeroes of this rank would change; use Average or Sum")

    def check_idle(self, call: str) -> None:
        """Refuses a call while gradients are being reduced."""
        if self._come:
            raise AssertionError(f"{call} between backward() and step() or synchronize(): gradients are being reduced; call it after step()")

    def _watch(self, parameter: torch.nn.Parameter) -> Any:
        with torch.enable_grad():
            function = parameter.expand_as(parameter).grad_fn
        assert function is not None
        accumulator = function.next_functions[0][0]
        own = weakref.ref(self)

        def has_come(*_: Any) -> None:
            # An optimizer that was dropped reduces no more.
            if (gradients := own()) is not None:
                gradients._has_come(parameter)

        accumulator.register_hook(has_come)
        return accumulator

    def _has_come(self, parameter: torch.nn.Parameter) -> None:
        if self._left[parameter] == 0:
            raise AssertionError(
                f"the gradient of {self.named[parameter]} was computed more than backward_passes_per_step ({self.passes}) times before "
                "step(); give DistributedOptimizer the number of backward passes of a step"
            )
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            with self._lock:
                self._take(parameter)

    def _take(self, parameter: torch.nn.Parameter) -> None:
        """Starts a gradient, and those that wait for it, if all before it have been started."""
        if parameter.grad is None:
            # Another rank may have one, of the kind that there was before.
            dimensions = self._sparse.get(parameter)
            parameter.grad = torch.zeros_like(parameter) if dimensions is None else without_rows(parameter, dimensions)
        if parameter.grad.layout is not torch.strided and self._sparse_as_dense:
            parameter.grad = parameter.grad.to_dense()
        if parameter.grad.layout is torch.strided:
            self._come[parameter] = prepared(parameter.grad, parameter.grad, self._scale, self._compression)
        else:
            check_sparse(parameter.grad, self._op, self.named[parameter])
            self._sparse[parameter] = parameter.grad.sparse_dim()
            self._come[parameter] = parameter.grad, None
        while len(self.handles) < len(self._order) and (next_one := self._order[len(self.handles)]) in self._come:
            if not self._is_told:
                self._is_told = True
                tell(self._group, STEP)
            sent, finish = self._come[next_one]
            if finish is None:
                sums = begin_sparse(self._group, sent, self._op)
                self.handles.append(Handle(sums, partial(_replace, next_one, sums)))
                continue
            # A tensor on a GPU is read after the work in its stream.
            work = begin(self._group, "all-reduce", sent, sent, self._op) if sent.is_cuda else self._group.push(self._numbers[next_one], sent)
            self.handles.append(Handle(work, finish))

    def finish(self) -> None:
        """Starts what has not come, and waits for all."""
        try:
            came = list(self._come)
            self._reduce_all()
            if self._is_first_step:
                tell(self._group, ORDER)
                self.agree(came)
        finally:
            self.begin_again()

    def _reduce_all(self) -> None:
        for parameter in self._order:
            if parameter not in self._come:
                self._take(parameter)
        for handle in self.handles:
            handle.wait()

    def agree(self, came: Sequence[torch.nn.Parameter] = ()) -> None:
        """From now on gradients start in the order in which they came on rank 0; those that did not come there are the last."""
        self._is_first_step = False
        places = {parameter: at for at, parameter in enumerate(self.named)}
        first = set(came)
        order = torch.tensor([places[parameter] for parameter in [*came] + [other for other in self._order if other not in first]], device="cpu")
        if len(order):
            begin(self._group, "broadcast", order if self._group.rank == 0 else None, order).wait()
        every = list(self.named)
        self._order = [every[at] for at in order.tolist()]


def _replace(parameter: torch.nn.Parameter, sums: Reduction) -> None:
    parameter.grad = sums.result()


class _Distributed:
    """What an optimizer's class gets in addition."""

    _gradients: _Gradients
    _is_synchronized = False
    _synchronizes = True

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. `step` does so, except within `skip_synchronize`."""
        self._gradients.finish()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step` takes the gradients as they are: for after `synchronize` and, say, a limit of their norm."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step, after all gradients are reduced."""
        if closure is not None and self._synchronizes:
            raise ArgumentError("step(closure): the closure's gradients would not be reduced; call backward() before, and step() without it")
        if self._synchronizes:
            if self._is_synchronized:
                warnings.warn(
                    "step() after synchronize() reduces gradients a second time; call it within skip_synchronize()", stacklevel=2
                )
            self.synchronize()
        self._is_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    # PyTorch wraps the step of a class that is not marked; the class below has its own wrapper.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *arguments: Any, **keywords: Any) -> None:
        """Clears the gradients, which must not be under way."""
        self._gradients.check_idle("zero_grad()")
        super().zero_grad(*arguments, **keywords)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Says how many backward passes a step has from now on."""
        self._gradients.check_idle("set_backward_passes_per_step()")
        self._gradients.passes = passes
        self._gradients.begin_again()

    def load_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        """Takes a state; the next backward pass is the first of a step."""
        self._gradients.check_idle("load_state_dict()")
        self._gradients.begin_again()
        super().load_state_dict(*arguments, **keywords)  # type: ignore[misc]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Makes an optimizer reduce its gradients over all ranks, each as soon as it has come, and returns it. All ranks call it with the same
    parameters in the same order; gradients come in any order, and some on some ranks only: a rank without one adds zeroes. A parameter with sparse
    gradients has one on every rank at least in its first step.

    `num_groups` and `groups` have no effect, which is a warning: the key `fuse_below` says which tensors are sent together.
    """
    without_effect("DistributedOptimizer", GROUPS, num_groups=num_groups, groups=groups)
    names = members(process_set)
    with refusals(names.group, "DistributedOptimizer"):
        op = reduction(op, None, "DistributedOptimizer")
        if gradient_predivide_factor != 1 and op != Average:
            raise ArgumentError("gradient_predivide_factor is for op=Average only")
        if backward_passes_per_step < 1:
            raise ArgumentError(f"backward_passes_per_step is {backward_passes_per_step}; give at least 1")
        if isinstance(optimizer, _Distributed):
            raise ArgumentError("this optimizer is a DistributedOptimizer already")
        every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if named_parameters is None:
            named = [(f"parameter.{at}", parameter) for at, parameter in enumerate(every)]
        else:
            named = list(named_parameters)
            given = [name for name, _ in named]
            if twice := sorted({name for name in given if given.count(name) > 1}):
                raise ArgumentError(f"named_parameters has {', '.join(twice)} more than once; give each parameter a name of its own")
            known, own = {id(parameter) for _, parameter in named}, {id(parameter) for parameter in every}
            # The names of a whole model may be given with an optimizer of a part.
            named = [(name, parameter) for name, parameter in named if id(parameter) in own]
            if unnamed := sum(id(parameter) not in known for parameter in every):
                raise ArgumentError(f"named_parameters lacks {unnamed} of the optimizer's {len(every)} parameters; give all of them")
        for name, parameter in named:
            if parameter.requires_grad:
                name_of(compression.type_of(parameter.dtype), name)
    group = names.group_of_optimizer()
    gradients = _Gradients(named, group, compression, backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense)
    names.add_optimizer(group, weakref.ref(gradients))
    kind = type(optimizer)
    optimizer.__class__ = type(f"Distributed{kind.__name__}", (_Distributed, kind), {})
    # A scheduler that was made before has put a step of the former class here.
    optimizer.__dict__.pop("step", None)
    optimizer._gradients = gradients  # type: ignore[attr-defined]
    return optimizer
