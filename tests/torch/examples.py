"""Trains examples/pytorch/digits.py under torchrun with Gloo and with Shouter, and compares the losses and the trained parameters.

    python tests/torch/examples.py

Two ranks: sums of two terms have the same bits in either order, so both runs must be equal to the bit. Ends with
`N passed, N failed, N skipped`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
EPOCHS = 2


def trained(backend: str, folder: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The lines of each epoch, and the parameters at the end."""
    parameters = f"{folder}/{backend}.pt"
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "examples/pytorch/digits.py"), backend, str(EPOCHS), parameters]
    foreign = ("SHOUTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SHOUTER_DUMP_FOLDER": folder}
    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, (backend, ended.returncode, ended.stdout, ended.stderr)
    lines = ended.stdout.splitlines()
    assert lines[-1].startswith(f"{backend}: a step takes"), lines
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert len(epochs) == EPOCHS, lines
    return epochs, torch.load(parameters)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (lines, parameters), (glooed, expected) = trained("shouter", folder), trained("gloo", folder)
    assert lines == glooed, (lines, glooed)
    assert parameters.keys() == expected.keys() and len(expected) == 6, (parameters.keys(), expected.keys())
    for name, found in parameters.items():
        assert torch.equal(found, expected[name]), (name, (found - expected[name]).abs().max())
    print("passed: digits by Shouter and by Gloo end with the same losses and parameters")
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
