"""What the parts of backend.py share."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import shouter
import shouter.torch

# PyTorch 2.
NEW = hasattr(dist.distributed_c10d, "BackendConfig")
VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
# destroy_process_group ends the group; older ones (2.4) only forget it.
ENDS_GROUPS = VERSION >= (2, 7)
# Newer ones (2.14, not 2.11), where a backend in Python is one for a kind of device; before, it is a whole group.
BY_DEVICE = NEW and hasattr(torch._C._distributed_c10d.Backend, "all_gather_single")


_store: dist.Store
_turn = 0


def start(rank: int, size: int, store: str) -> None:
    global _store
    _store = dist.FileStore(store, size)
    join(rank, size)


def join(rank: int, size: int, backend: str = "shouter", seconds: float = 60) -> None:
    """Joins once more: a job may come together again and again."""
    global _turn
    _turn += 1
    timeout = timedelta(seconds=seconds)
    dist.init_process_group(backend, store=dist.PrefixStore(f"turn {_turn}", _store), rank=rank, world_size=size, timeout=timeout)


def stop() -> None:
    dist.barrier()
    dist.destroy_process_group()


def of(rank: int, dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 5), device: str | None = None) -> torch.Tensor:
    """A rank's tensor: small numbers, so that sums and products are exact in every type. Every rank knows every other's."""
    torch.manual_seed(100 + rank)
    if dtype is torch.bool:
        return torch.rand(shape, device=device) < 0.5
    numbers = torch.randint(1, 4, shape, device=device)
    if dtype.is_complex:
        return torch.complex(numbers.double(), torch.randint(1, 4, shape, device=device).double()).to(dtype)
    return numbers.to(dtype)


def everyone(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 5)) -> list[torch.Tensor]:
    return [of(rank, dtype, shape) for rank in range(dist.get_world_size())]


def same(found: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype, (what, found, expected)
    if found.dtype.is_floating_point and found.dtype.itemsize == 1 if NEW else False:
        found, expected = found.float(), expected.float()
    assert torch.equal(found, expected), (what, found, expected)


def refused(call: Callable[[], Any], *words: str, error: type[BaseException] = shouter.ArgumentError) -> BaseException:
    """Calls it, which has to raise an error that says these words."""
    try:
        call()
    except error as why:
        assert all(word in str(why) for word in words), (str(why), words)
        return why
    raise AssertionError(("not refused", words))


def both(call: Callable[..., Any], result: Callable[[], torch.Tensor], reset: Callable[[], None], expected: torch.Tensor) -> None:
    """A call that waits, and one that is started and waited for later: what nobody refers to must not be collected meanwhile."""
    reset()
    assert call(async_op=False) is None
    same(result(), expected, "waited for")
    reset()
    work = call(async_op=True)
    gc.collect()
    work.wait()
    same(result(), expected, "started")
    reset()
    future = call(async_op=True).get_future()
    gc.collect()
    future.wait()
    same(result(), expected, "by its future")
