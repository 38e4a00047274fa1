#!/usr/bin/python3
"""Reads what a run of scripts/demo left behind, prints the tables and the proof, and writes report.html and timeline.json.

Exits with 1 if the ranks' parameters differ in a single bit, if they are not within 1e-4 of the single-process run
(norm of the difference over the norm), if a faulty run ends with other bits than the clean one, or if the test accuracy
is below 0.95.
"""
import argparse
import array
import hashlib
import html
import io
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

FOLDER = os.environ.get("PROFILE", "release").replace("dev", "debug")
TOLERANCE = 1e-4
ACCURACY = 0.95


def load_lines(path):
    """A trainer's --json file: its step lines, its epoch lines and its summary."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_type = {kind: [line for line in lines if line["type"] == kind] for kind in ("step", "epoch", "done")}
    if len(by_type["done"]) != 1:
        sys.exit(f"error: {path} has no summary: the trainer did not finish")
    return by_type["step"], by_type["epoch"], by_type["done"][0]


def parameters(path):
    values = array.array("f")
    values.frombytes(path.read_bytes())
    if sys.byteorder == "big":
        values.byteswap()
    return values


def relative_distance(ours, reference):
    """The norm of the difference over the norm of the reference."""
    if len(ours) != len(reference):
        return math.inf
    difference = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(ours, reference)))
    return difference / math.sqrt(math.fsum(b * b for b in reference))


def binary_size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024


def goodput(count, microseconds):
    return f"{count / microseconds:.1f} MB/s" if microseconds > 0 else "-"


def plain_table(head, rows):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in [head, *rows]]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def html_table(head, rows):
    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + row(head, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"


def epoch_table(ranks):
    """One row an epoch: what rank 0 reported, and the gradient traffic and its time over all ranks."""
    head = ["epoch", "loss", "test accuracy", "gradient bytes a rank", "in all-reduce", "share of the step", "goodput a rank"]
    rows = []
    for line in ranks[0][1]:
        epoch = line["epoch"]
        steps = [step for rank in ranks for step in rank[0] if step["epoch"] == epoch]
        count = sum(step["gradient_bytes"] for step in steps) / len(ranks)
        blocked = sum(step["allreduce_us"] for step in steps) / len(ranks)
        whole = sum(step["time_us"] for step in steps) / len(ranks)
        rows.append([
            str(epoch), f"{line['loss']:.6f}", f"{line['test_accuracy']:.4f}", binary_size(count), f"{blocked / 1e3:.2f} ms",
            f"{100 * blocked / whole:.0f}%", goodput(count, blocked),
        ])
    return head, rows


def rank_table(ranks):
    head = ["rank", "operations", "bytes reduced", "in all-reduce", "goodput", "frames sent", "received", "resent", "dropped for CRC"]
    rows = []
    for _, _, done in ranks:
        rows.append([
            str(done["rank"]), str(done["operations"]), binary_size(done["bytes_reduced"]), f"{done['blocked_us'] / 1e3:.1f} ms",
            goodput(done["bytes_reduced"], done["blocked_us"]), str(done["frames_sent"]), str(done["frames_received"]),
            str(done["resent"]), str(done["crc_dropped"]),
        ])
    total = ["all", "", "", "", ""]
    total += [str(sum(done[name] for _, _, done in ranks)) for name in ("frames_sent", "frames_received", "resent", "crc_dropped")]
    return head, [*rows, total]


def plots(ranks, single):
    """The loss of the run and of the reference, and the time of each step, as one SVG element."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    left.plot([e["epoch"] for e in single[1]], [e["loss"] for e in single[1]], color="0.7", linewidth=4, label="one process")
    left.plot([e["epoch"] for e in ranks[0][1]], [e["loss"] for e in ranks[0][1]], label=f"{len(ranks)} ranks")
    left.set(xlabel="epoch", ylabel="mean loss (nats)", yscale="log", title="Loss on the training rows")
    left.legend()
    steps = ranks[0][0]
    right.plot([s["step"] for s in steps], [s["time_us"] / 1e3 for s in steps], linewidth=0.7, label="whole step")
    right.plot([s["step"] for s in steps], [s["allreduce_us"] / 1e3 for s in steps], linewidth=0.7, label="of it in all-reduce")
    ordered = sorted(s["time_us"] / 1e3 for s in steps)
    right.set(xlabel="step", ylabel="milliseconds", title="Time of each step, rank 0 (up to its 99th percentile)")
    right.set_ylim(0, 1.1 * ordered[round((len(ordered) - 1) * 0.99)])
    right.legend()
    image = io.StringIO()
    figure.savefig(image, format="svg", metadata={"Date": None})
    text = image.getvalue()
    return text[text.index("<svg"):]


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #d0d7de;
font-variant-numeric:tabular-nums}code{font-size:13px}.pass{color:#116329}.fail{color:#a40e26;font-weight:bold}svg{max-width:100%;height:auto}"""


def write_html(path, title, figure, tables, proof):
    checks = "".join(f"<li class={'pass' if good else 'fail'}>{'holds' if good else 'FAILS'}: {html.escape(what)}</li>" for good, what in proof["checks"])
    hashes = "".join(f"<li>rank {rank}: <code>{digest}</code></li>" for rank, digest in enumerate(proof["hashes"]))
    body = "".join(f"<h2>{html.escape(name)}</h2>{html_table(*table)}" for name, table in tables)
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1>{figure}<h2>The proof</h2><p>SHA-256 of the parameters, rank by rank:</p><ul>{hashes}</ul>"
        f"<ul>{checks}</ul>{body}</html>\n"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("target/demo"), help="what scripts/demo wrote (default %(default)s)")
    parser.add_argument("--run", default="clean", help="which run to report: clean or faulty (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--brief", action="store_true", help="only the proof: no tables, no report, no timeline")
    parser.add_argument("--faults", default="", help="the faults that were injected, for the title")
    options = parser.parse_args()
    folder, name = options.folder, options.run

    ranks = [load_lines(folder / f"{name}-{rank}.jsonl") for rank in range(options.ranks)]
    single = load_lines(folder / "single.jsonl")
    dumps = [(folder / f"{name}-{rank}.params").read_bytes() for rank in range(options.ranks)]
    hashes = [hashlib.sha256(dump).hexdigest() for dump in dumps]
    reference = parameters(folder / "single.params")
    distance = relative_distance(parameters(folder / f"{name}-0.params"), reference)
    accuracy = ranks[0][2]["test_accuracy"]
    seconds = max(done["seconds"] for _, _, done in ranks)
    checks = [
        (len(set(hashes)) == 1, f"the {options.ranks} ranks' parameters are the same bits"),
        (distance <= TOLERANCE, f"they match the single-process run: distance {distance:.3g}, at most {TOLERANCE:g} (norm of the difference over the norm)"),
        (accuracy >= ACCURACY, f"test accuracy {accuracy:.4f}, at least {ACCURACY}"),
    ]
    if name != "clean":
        clean = hashlib.sha256((folder / "clean-0.params").read_bytes()).hexdigest()
        checks.append((hashes[0] == clean, f"the clean run ended with the same hash: {clean}"))

    title = f"{options.ranks} ranks on {options.hosts} hosts" + (f", with {options.faults}" if options.faults else "")
    epochs, network = epoch_table(ranks), rank_table(ranks)
    print(f"\n{title}: trained in {seconds:.2f} s")
    if options.brief:
        for good, what in checks:
            print(f"{'holds' if good else 'FAILS'}: {what}")
        sys.exit(0 if all(good for good, _ in checks) else 1)
    print("\nBy epoch (bytes, times and goodput: mean of the ranks; time in all-reduce is time spent inside push and wait)")
    print(plain_table(*epochs))
    print("\nBy rank (a host's first rank owns its port, and counts its frames)")
    print(plain_table(*network))
    steps = [step["time_us"] for step in ranks[0][0]]
    print(f"\nA step on rank 0: median {statistics.median(steps):.0f} us, of which "
          f"{statistics.median(step['allreduce_us'] for step in ranks[0][0]):.0f} us in all-reduce of {binary_size(ranks[0][2]['gradient_bytes_per_step'])}")
    print("\nThe proof: SHA-256 of the parameters")
    for rank, digest in enumerate(hashes):
        print(f"  rank {rank}: {digest}")
    for good, what in checks:
        print(f"  {'holds' if good else 'FAILS'}: {what}")

    timelines = sorted((folder / f"{name}-timelines").glob("*.json"))
    if len(timelines) != options.ranks:
        sys.exit(f"{len(timelines)} timelines of {options.ranks} ranks in {folder / f'{name}-timelines'}")
    (folder / "timeline.json").unlink(missing_ok=True)
    merge = [pathlib.Path(__file__).parent.parent / "target" / FOLDER / "shouter", "timeline", "merge", folder / "timeline.json", *timelines]
    traced = subprocess.run(merge, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    tables = [("By epoch", epochs), ("By rank", network)]
    write_html(folder / "report.html", title, plots(ranks, single), tables, {"hashes": hashes, "checks": checks})
    print(f"\n{folder / 'report.html'}: the plots; {traced}, open it at https://ui.perfetto.dev")
    sys.exit(0 if all(good for good, _ in checks) else 1)


if __name__ == "__main__":
    main()
