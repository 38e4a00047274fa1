"""The table of docs/pytorch-tests.md: what became of each test that PyTorch ships, for each version of torch and backend."""
import json
import re

HEAD = """# The tests that PyTorch ships

`torch/testing/_internal/distributed/distributed_test.py` of each version of torch, run against Shouter and against Gloo, with 4 ranks
on the CPU. [tests/torch/shipped.py](../tests/torch/shipped.py) runs them and wrote this file:

    python tests/torch/shipped.py --backend gloo --json gloo.json
    python tests/torch/shipped.py --backend shouter --against docs/pytorch-tests.md --json shouter.json
    python tests/torch/shipped.py --table docs/pytorch-tests.md *.json

Gates on backend names are opened: a test's decorators let it through where they would for Gloo. The names in PyTorch's lists of
backends whose profiler events a test looks for are left as they are, so those events are looked for with Gloo only.
A skip is allowed only where the reason is CUDA, where Gloo skips too, or where torch itself refuses a backend that is not its own.
`scripts/test torch` runs a slice of those that Gloo passes, and `scripts/test --long torch` all of them.

"""
# A short form for a reason of many skips.
SHORT = (
    (re.compile(r"cuda|gpu|nccl|rocm|ucc|accelerator", re.IGNORECASE), "CUDA"),
    (re.compile(r"^refused: "), ""),
)


def short(test):
    """The cell of one outcome."""
    if test is None:
        return "not there"
    if test["outcome"] == "passed":
        return "passed"
    reason = test["reason"]
    for pattern, word in SHORT:
        if pattern.search(reason):
            reason = word or reason
            break
    return f"{test['outcome']}: {reason}".replace("|", "/")


def write_table(path, files):
    """Writes the table of what shipped.py wrote with --json: one file for each version of torch and backend."""
    columns = {}
    for name in files:
        with open(name, encoding="utf-8") as lines:
            read = json.load(lines)
        columns[read["torch"], read["backend"]] = read["tests"]
    order = sorted(columns, key=lambda key: ([-int(part) for part in key[0].split(".")], key[1] == "gloo"))
    with open(path, "w", encoding="utf-8") as out:
        out.write(HEAD)
        out.write("| torch | backend | passed | failed | skipped |\n|---|---|---|---|---|\n")
        for key in order:
            ends = [test["outcome"] for test in columns[key].values()]
            out.write(f"| {key[0]} | {key[1]} | {ends.count('passed')} | {ends.count('failed')} | {ends.count('skipped')} |\n")
        out.write("\n| test | " + " | ".join(f"{version} {backend}" for version, backend in order) + " |\n")
        out.write("|---" * (len(order) + 1) + "|\n")
        for name in sorted(set().union(*columns.values())):
            out.write(f"| {name} | " + " | ".join(short(columns[key].get(name)) for key in order) + " |\n")


def outcomes_of(path, version, backend):
    """From a table: test to `passed`, `failed` or `skipped`, of one column; empty if there is no such column."""
    column, outcomes = None, {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if cells[0] == "test":
                column = cells.index(f"{version} {backend}") if f"{version} {backend}" in cells else None
            elif column is not None and cells[0].startswith("test_"):
                word = cells[column].split(":")[0]
                if word in ("passed", "failed", "skipped"):
                    outcomes[cells[0]] = word
    return outcomes
