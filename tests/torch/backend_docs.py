"""The snippets of docs/pytorch.md, each by all ranks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from backend_common import NEW

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / page).read_text() for page in ("docs/pytorch.md", "README.md"))
SNIPPETS = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
_store: dist.Store


def start(rank: int, size: int, store: str) -> None:
    """What a launcher says."""
    global _store
    _store = dist.FileStore(store, size)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1")


def check_of(at: int, snippet: str) -> Callable[[], str | None]:
    def check() -> str | None:
        if snippet.startswith("# PyTorch 2") and not NEW:
            return "it is for PyTorch 2"
        if os.environ["RANK"] == "0":
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                # Below the range from which the kernel takes ports: other tests' sockets do not get it by chance.
                _store.set(f"port {at}", str(10_000 + probe.getsockname()[1] % 10_000))
        os.environ["MASTER_PORT"] = _store.get(f"port {at}").decode()
        exec(compile(snippet, f"snippet {at}", "exec"), {"__name__": "__main__"})
        assert not dist.is_initialized()
        return None

    check.__name__ = f"snippet_{at}"
    return check


def stop() -> None:
    """Each snippet has left its group."""


def without_pytorch() -> None:
    """The import says what to install."""
    script = "import sys; sys.modules['torch'] = None; import shouter.torch"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "pip install torch" in ended.stderr, ended.stderr


assert SNIPPETS
CHECKS = [without_pytorch, *(check_of(at, snippet) for at, snippet in enumerate(SNIPPETS))]
