"""Handles in asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

from . import _core
from .errors import Timeout


async def ended(work: _core.Work) -> Any:
    """Waits for a handle in the running event loop, which goes on meanwhile; returns what `wait` returns. Where the task is cancelled, the
    operation goes on."""
    try:
        # As with any wait, this starts an operation that waits for others of its bucket.
        return work.wait(0)
    except Timeout:
        if not isinstance(work, _core.Work):
            raise
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not told.done():
            told.set_result(None)

    def tell(_: _core.Work) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)

    work.add_done_callback(tell)
    await told
    return work.wait()
