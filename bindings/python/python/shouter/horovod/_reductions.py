"""Reductions by Horovod's names."""

from __future__ import annotations

from ..errors import ArgumentError

Average, Sum, Adasum, Min, Max, Product = "avg", "sum", "adasum", "min", "max", "prod"
"""Reductions. Adasum is refused."""


def reduction(op: str | None, average: bool | None, call: str) -> str:
    """The reduction that is asked for, in Horovod's older way or its newer one."""
    if op is not None and average is not None:
        raise ArgumentError(f"{call}: both op and average are given; give op alone")
    chosen = op or (Average if average is None or average else Sum)
    if chosen == Adasum:
        raise ArgumentError(f"{call}: Adasum is not supported; use Average or Sum")
    if chosen not in (Average, Sum, Min, Max, Product):
        raise ArgumentError(f"{call}: {op!r} is no reduction; use Average, Sum, Min, Max or Product")
    return chosen
