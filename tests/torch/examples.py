"""Trains examples/pytorch/digits.py under torchrun with Gloo and with Shouter, and compares the losses and the trained parameters.

    python tests/torch/examples.py

Two ranks: sums of two terms have the same bits in either order, so both runs must be equal to the bit. Ends with
`N passed, N failed, N skipped`.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).resolve()
EXAMPLE = HERE.parents[2] / "examples/pytorch/digits.py"
EPOCHS = 2


def trained(backend: str, folder: str) -> tuple[list[str], dict[str, torch.Tensor]]:
    """The lines of each epoch, and the parameters at the end."""
    parameters = f"{folder}/{backend}.pt"
    command = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    command += [str(HERE), "--leave"] if backend == "gloo" else [str(EXAMPLE)]
    command += [backend, str(EPOCHS), parameters]
    foreign = ("SHOUTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SHOUTER_DUMP_FOLDER": folder}
    with open(f"{folder}/{backend}", "w+") as output:
        try:
            ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=200, check=False)
            how = f"has ended with {ended.returncode}"
        except subprocess.TimeoutExpired as late:
            how = f"was still running after {late.timeout:.0f} s"
        output.seek(0)
        said = output.read()
    lines = said.splitlines()
    epochs = [line for line in lines if line.startswith("epoch ")]
    is_timed = any(line.startswith(f"{backend}: a step takes") for line in lines)
    if how != "has ended with 0" or len(epochs) != EPOCHS or not is_timed:
        sys.exit(f"{said}\nFAILED: digits by {backend}: {' '.join(command)} {how}; its output is above")
    return epochs, torch.load(parameters)


def leave() -> None:
    """A rank with Gloo, whose process ends without the interpreter's own end: Gloo's threads live until then, and one that frees a tensor
    during it ends the process by SIGABRT."""
    sys.argv = [str(EXAMPLE), *sys.argv[2:]]
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    sys.stdout.flush()
    os._exit(0)


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
    if sys.argv[1:2] == ["--leave"]:
        leave()
    else:
        main()
