"""The snippets of docs/python.md, each by two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Job

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("at", range(len(SNIPPETS)))
def test_snippet(job: Job, at: int) -> None:
    job(2, SNIPPETS[at])
