"""The snippets of docs/python.md and docs/ps.md, each by two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Job

PAGES = [Path(__file__).parents[3] / "docs" / name for name in ("python.md", "ps.md")]
SNIPPETS = [
    snippet for page in PAGES for snippet in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize("at", range(len(SNIPPETS)))
def test_snippet(job: Job, at: int) -> None:
    job(2, SNIPPETS[at])
