"""PyTorch's rendezvous `env://` under launchers that set none of its variables, such as mpirun and srun, and under `shouter run`.

The ranks join as `shouter.init` does, once, to learn where rank 0's store is. It is PyTorch's TCPStore, so any backend can use it.
"""

from __future__ import annotations

import importlib
import os
import socket
import struct
from collections.abc import Iterator
from datetime import timedelta
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlparse

import torch.distributed as dist

from .. import _core
from ..errors import ConfigError, ShouterError
from ._groups import seconds_of
from ._work import raised

# The port of rank 0's store, as rank 0 broadcasts it.
_PORT = struct.Struct("=I")
# The longest wait for an answer of one of rank 0's addresses, and for one of any of them, in seconds. Its store listens already.
_ANSWER, _ANSWERS = 2.0, 30.0
_HALF_AN_HOUR = timedelta(minutes=30)


def register() -> None:
    """`env://` becomes `meet` where PyTorch's own would find no rank, or have one port for all the stores of a job."""
    handlers = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    pytorchs = handlers["env"]

    def env(url: str, **options: Any) -> Iterator[tuple[dist.Store, int, int]]:
        # `init_process_group(rank=...)` puts the rank into the URL.
        if urlparse(url).query or ("RANK" in os.environ and not _meets_by_settings()):
            return pytorchs(url, **options)
        return meet(**options)

    handlers["env"] = env


def _meets_by_settings() -> bool:
    """Whether this rank has all that `meet` needs, as `shouter run` sets it beside PyTorch's variables. Ranks of a torchrun that such a rank
    has started have torchrun's variables as well."""
    needed = ("SHOUTER_RANK", "SHOUTER_SIZE", "SHOUTER_ADDR", "SHOUTER_PORT")
    return all(name in os.environ for name in needed) and "TORCHELASTIC_RUN_ID" not in os.environ


def meet(timeout: timedelta = _HALF_AN_HOUR, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """The store, this rank and the number of ranks, under any launcher that `shouter.init` knows."""
    seconds = seconds_of(timeout)
    # This job carries one number: it needs no NIC, no cores, no figures and no records, and what the user asked to see is of the job behind it.
    settings = [("transport", "kernel"), ("mode", "caller"), ("measure_costs", "off")]
    settings += [(key, "") for key in ("timeline", "metrics", "dump_folder")]
    try:
        core = _core.join([*settings, ("deadline", seconds), ("rendezvous_deadline", seconds)])
    except ConfigError as why:
        if " missing: " not in str(why):
            raise
        raise ConfigError(
            f"{why}. For PyTorch, start the ranks by torchrun, `python -m shouter run`, mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT"
        ) from None
    except ShouterError as why:
        raise raised(why) from None
    try:
        store = _store(core, timeout)
        core.close()
    except ShouterError as why:
        raise raised(why) from None
    finally:
        core.leave()
    yield store, core.rank, core.size
    raise RuntimeError("the ranks of a launcher cannot meet again through the same rendezvous; call init_process_group again")


def _store(core: _core.Group, timeout: timedelta) -> dist.Store:
    port = bytearray(_PORT.size)
    if core.rank == 0:
        try:
            store = dist.TCPStore("127.0.0.1", 0, core.size, True, timeout, wait_for_workers=False)
        except Exception as why:
            core.abort(f"no store of PyTorch's: {why}")
            raise
        _PORT.pack_into(port, 0, store.port)
    core.run("broadcast", output=port, dtype="uint8")
    if core.rank == 0:
        return store
    (number,) = _PORT.unpack(port)
    return dist.TCPStore(_reached(core.rank0_addresses(), number, timeout), number, core.size, False, timeout, wait_for_workers=False)


def _reached(addresses: list[str], port: int, timeout: timedelta) -> str:
    """The first of rank 0's addresses that answers from here."""
    if len(addresses) == 1:
        return addresses[0]
    until = monotonic() + min(_ANSWERS, timeout.total_seconds())
    while True:
        for address in addresses:
            try:
                with socket.create_connection((address, port), _ANSWER):
                    return address
            except OSError as why:
                last = why
        if monotonic() > until:
            raise ConnectionError(f"rank 0's store is reached at none of {', '.join(addresses)}, port {port}: {last}; set SHOUTER_ADDR on rank 0")
        sleep(0.1)
