"""What the benches of the frameworks share: a job for each round, whose ranks take turns between calls, and the medians over the rounds."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def timed(calls, turns, options):
    """The times of each call in microseconds, of whose median or lowest twentieth this rank has one; each takes `turns` turns at a time."""
    import shouter

    took = {name: [] for name in calls}
    until = time.perf_counter() + options.seconds
    while True:
        for name, call in calls.items():
            for _ in range(turns):
                began = time.perf_counter()
                call()
                took[name].append((time.perf_counter() - began) * 1e6)
        # All ranks go on, or none.
        late = bytearray([time.perf_counter() > until])
        shouter.allreduce(late, "max")
        if late[0]:
            break
    parts = 20 if options.lowest else 2
    return {name: statistics.quantiles(times, n=parts)[0] for name, times in took.items()}


def _job(script, ranks, environment, options):
    with tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "found")
        rank = [sys.executable, os.path.abspath(script), "--rank", "--found", found]
        rank += ["--bytes", ",".join(map(str, options.bytes)), "--seconds", str(options.seconds), *["--lowest"] * options.lowest]
        start = [sys.executable, "-m", "shouter", "run", "-n", str(ranks), "--cores", "none", "--", *rank]
        ended = subprocess.run(start, env=os.environ | environment, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"bench: the ranks failed:\n{ended.stdout}{ended.stderr}")
        return json.loads(Path(found).read_text())


def run(script, describe, *, ranks, environment, rank_main, head, rows):
    """The program: `rank_main(options)` is a rank's, and returns what `timed` has for each size; `rows(medians)` are a name's cells behind
    its times, by name."""
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=describe, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=numbers, default=[4, 65536, 1 << 20])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=numbers, default=ranks)
    parser.add_argument("--seconds", type=float, default=0.5, help="for one size and round")
    parser.add_argument("--lowest", action="store_true", help="the fastest twentieth of each round instead of its median")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        import shouter

        shouter.init()
        found = rank_main(options)
        if shouter.rank() == 0:
            Path(options.found).write_text(json.dumps(found))
        shouter.close()
        return
    if not options.json:
        print(f"{'ranks':>5}{'bytes':>10}  {'':18}{'us':>28}{head}")
    for count in options.ranks:
        rounds = [_job(script, count, environment, options) for _ in range(options.rounds)]
        for at, size in enumerate(options.bytes):
            row = {name: [found[at][name] for found in rounds] for name in rounds[0][at]}
            if options.json:
                print(json.dumps({"bytes": size, "ranks": count, "us": row}), flush=True)
                continue
            middle = {name: statistics.median(times) for name, times in row.items()}
            more = rows(middle)
            for name, times in row.items():
                cells = f"{f'{middle[name]:.1f} ({min(times):.1f} to {max(times):.1f})':>28}"
                print(f"{count:>5}{size:>10}  {name:18}{cells}{more.get(name, '')}", flush=True)
