"""Parameters, states of optimizers, and objects, from one rank to the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ...errors import ArgumentError
from .._job import ProcessSet, global_process_set
from .._names import Names
from .._objects import broadcast_by, gather_by
from .._turns import refusals
from ._operations import broadcast_named, members


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Gives every rank the tensors of `root_rank`, in place: those of a `state_dict()`, of `named_parameters()`, or of a list."""
    names = Names(members(process_set).group)
    with refusals(names.group, "broadcast_parameters"):
        named = list(params.items()) if isinstance(params, Mapping) else list(params)
        named = [row if isinstance(row, tuple) else (f"parameter.{at}", row) for at, row in enumerate(named)]
        named = [(name, tensor) for name, tensor in named if tensor is not None]
        for name, tensor in named:
            if not isinstance(tensor, torch.Tensor):
                raise ArgumentError(f"broadcast_parameters: {name} is a {type(tensor).__name__}, and no tensor; use broadcast_object for it")
    handles = [broadcast_named(names, tensor, root_rank, name) for name, tensor in named if tensor.numel() > 0]
    for handle in handles:
        handle.wait()


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of `root_rank`, on every rank; it is pickled."""
    return broadcast_by(process_set, obj, root_rank)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, by rank; they are pickled."""
    return gather_by(process_set, obj)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives every rank the state of `root_rank`'s optimizer: learning rates, momenta and the like. `model` is not needed."""
    is_root = members(process_set).group.rank == root_rank
    state = broadcast_object(_on_host(optimizer.state_dict()) if is_root else None, root_rank, process_set=process_set)
    if not is_root:
        optimizer.load_state_dict(state)


def _on_host(state: Any) -> Any:
    """The same with tensors in the memory of the host: another rank may not have this one's devices."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: _on_host(value) for key, value in state.items()}
    return [_on_host(value) for value in state] if isinstance(state, list) else state
