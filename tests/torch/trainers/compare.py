#!/usr/bin/env python3
"""Trains with Gloo and twice with another backend, and compares losses and parameters of every rank.

    python tests/torch/trainers/compare.py [--backend shouter] [CHECK...]

What Gloo's ranks and ours hold must be equal to 1e-6 (where sums are rounded to bf16: to what ddp.LOOSE says), and what our ranks
hold must be equal to the bit in both runs. On torch 1.13 only what ddp.py has is run. 4 ranks, tiny models.
The last line is `N passed, N failed, N skipped`; exit status 0 if none failed.
"""
import argparse
import os
import re
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch

import ddp
import ranks

TOLERANCE = 1e-6


def difference(ours, gloos, tolerance):
    """What differs between the results of one check, by rank, or ''."""
    for rank, (one, other) in enumerate(zip(ours, gloos)):
        if one.keys() != other.keys():
            return f"rank {rank}: {sorted(one.keys() ^ other.keys())} is in one only"
        for name in one:
            a, b = one[name].double(), other[name].double()
            if a.shape != b.shape:
                return f"rank {rank}: {name} has shape {list(a.shape)} and not {list(b.shape)}"
            if not torch.allclose(a, b, rtol=tolerance, atol=tolerance):
                return f"rank {rank}: {name} differs by {(a - b).abs().max():.3g}"
    return ""


def same_bits(first, second):
    for rank, (one, other) in enumerate(zip(first, second)):
        for name in one:
            if one[name].numpy().tobytes() != other[name].numpy().tobytes():
                return f"rank {rank}: {name} has other bits in a second run"
    return ""


def gloos(checks, limit):
    """Gloo's run, once more where one of its ranks ends by a signal: on PyTorch 2.15 the C library sometimes finds its heap damaged in an
    all-reduce of sparse tensors."""
    try:
        return ranks.run("gloo", checks, limit=limit)
    except ranks.Failed as why:
        if not re.search("exit status -(6|11)", str(why)):
            raise
        print(why, file=sys.stderr)
        print("a rank with Gloo has ended by a signal: its run is repeated")
        return ranks.run("gloo", checks, limit=limit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHECK")
    parser.add_argument("--backend", default="shouter")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one run of all checks (default 240)")
    options = parser.parse_args()
    checks, loose = list(ddp.CHECKS), ddp.LOOSE
    if not torch.__version__.startswith("1."):
        import sharded

        checks += sharded.CHECKS
    if options.names:
        unknown = set(options.names) - {check.__name__ for check in checks}
        if unknown:
            parser.error(f"no check {', '.join(sorted(unknown))}; there are {', '.join(check.__name__ for check in checks)}")
        checks = [check for check in checks if check.__name__ in options.names]
    if "shouter" in options.backend:
        import shouter.torch  # noqa: F401  registers the backend
    runs, failed, began = [], 0, time.monotonic()
    for backend in ("gloo", options.backend, options.backend):
        try:
            runs.append(gloos(checks, options.limit) if backend == "gloo" else ranks.run(backend, checks, limit=options.limit))
        except ranks.Failed as why:
            print(why, file=sys.stderr)
            print(f"FAILED: {backend}: a rank ended badly or was late\n0 passed, 1 failed, 0 skipped")
            return 1
    (gloo, _), (first, seconds), (second, _) = runs
    for check in checks:
        name = check.__name__
        of = [[results[name] for results in run] for run in (gloo, first, second)]
        wrong = difference(of[1], of[0], loose.get(name, TOLERANCE)) or same_bits(of[1], of[2])
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'passed'}: {name} {seconds[name]:.1f} s {wrong}")
    print(f"torch {torch.__version__}, {options.backend} against gloo, 4 ranks, {time.monotonic() - began:.0f} s")
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
