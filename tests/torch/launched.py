"""`init_process_group("shouter")` without arguments, under launchers that set none of PyTorch's variables and under `shouter run`, with ranks
that die while they meet; and `shouter check` under these launchers.

    python tests/torch/launched.py [PROGRAM]

PROGRAM is `shouter`, else the one in PATH. A launcher that is not installed counts as skipped. Ends with `N passed, N failed, N skipped`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve()
SLURM = HERE.parents[2] / "scripts/lib/with-slurm"
# Two hosts' address on their default route is the same, as that of virtual machines behind NAT is.
NETWORK = """
netns add {a}
netns add {b}
-n {a} link add eth0 type veth peer name eth0 netns {b}
-n {a} address add 10.78.0.1/24 dev eth0
-n {b} address add 10.78.0.2/24 dev eth0
-n {a} link set eth0 up
-n {b} link set eth0 up
-n {a} link set lo up
-n {b} link set lo up
"""
NAT = """
-n {a} link add nat type veth peer name gateway
-n {a} address add 10.0.2.15/24 dev nat
-n {a} link set nat up
-n {a} link set gateway up
-n {a} route add default via 10.0.2.2
"""
ENTER = ["ip", "netns", "exec"]


def rank(backends: list[str]) -> None:
    """A rank of the job: PyTorch's default group by each of these backends in turn."""
    import torch
    import torch.distributed as dist

    import shouter.torch

    for backend in backends:
        dist.init_process_group(backend)
        ones = torch.ones(1000)
        dist.all_reduce(ones)
        part = dist.new_group([0, 1])
        dist.broadcast(ones, 1, group=part)
        assert ones[999].item() == dist.get_world_size() == 2, ones
        print(f"{backend}: rank {dist.get_rank()} of {dist.get_world_size()}\n", end="", flush=True)
        dist.barrier()
        dist.destroy_process_group()


def environment_of(**variables: str) -> dict[str, str]:
    """The environment of a rank or a launcher, without a launcher's variables but these."""
    foreign = ("SHOUTER_", "SLURM_", "PMI", "OMPI_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    # The rank that waits long for a core on a busy machine is not dead.
    return environment | {"SHOUTER_HEARTBEAT_TIMEOUT": "30s", "GLOO_SOCKET_IFNAME": "lo"} | variables


def start(*words: str, **variables: str) -> str:
    """What a job prints that has to end well."""
    environment = environment_of(**variables)
    ended = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, (ended.returncode, ended.stdout, ended.stderr)
    return ended.stdout


def joined(*words: str, backends: tuple[str, ...] = ("shouter", "gloo"), **variables: str) -> None:
    says = start(*words, sys.executable, str(HERE), "--rank", *backends, **variables)
    for line in (f"{backend}: rank {number} of 2" for backend in backends for number in (0, 1)):
        assert says.count(line) == 1, (line, says)


class Skip(Exception):
    """Why a check cannot run here."""


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Skip(f"there is no {program}")


def shouter_run(program: str) -> None:
    needs(program)
    joined(program, "run", "-n", "2", "--")
    # What the job's own hosts, link and faults are does not matter to the stores.
    joined(program, "run", "-n", "2", "--hosts", "2", "--loss", "1%", "--")


def parts() -> None:
    """A rank of three: groups of some ranks beside Gloo's of all, which have no group of the library's to be made of."""
    import torch
    import torch.distributed as dist

    import shouter.torch

    dist.init_process_group("gloo")
    # Two that overlap, one of one rank, and all.
    for ranks in ([0, 2], [1, 2], [1], [0, 1, 2]):
        group = dist.new_group(ranks, backend="shouter")
        if dist.get_rank() in ranks:
            ones = torch.ones(1000)
            dist.all_reduce(ones, group=group)
            assert ones[999].item() == len(ranks) == shouter.torch.group(group).size, ones
    store = dist.PrefixStore("turned", dist.distributed_c10d._get_default_store())
    turned = shouter.init(store=store, rank=(dist.get_rank() + 1) % 3, size=3)
    assert turned.rank == (dist.get_rank() + 1) % 3
    turned.barrier()
    shouter.close()
    print(f"gloo: rank {dist.get_rank()} of 3\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def groups_of_some_ranks(program: str) -> None:
    needs(program)
    for hosts in ([], ["--hosts", "3"], ["--hosts", "2", "--transport", "kernel"]):
        said = start(program, "run", "-n", "3", *hosts, "--", sys.executable, str(HERE), "--parts")
        assert said.count("gloo: rank") == 3, said


def open_mpi(_: str) -> None:
    needs("mpirun.openmpi")
    joined("mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", "2")


def mpich(_: str) -> None:
    needs("mpiexec.hydra")
    joined("mpiexec.hydra", "-n", "2")


def slurm(_: str) -> None:
    needs("slurmctld", "slurmd", "munged", "srun")
    if os.geteuid() != 0:
        raise Skip("a Slurm of one's own needs root")
    for pmi in ("pmi2", "pmix"):
        joined(str(SLURM), "srun", f"--mpi={pmi}", "-n", "2", "-O")
    joined(str(SLURM), "srun", "--mpi=none", "-n", "2", "-O", SHOUTER_KEY="0123456789abcdef0123456789abcdef")


def two_network_namespaces(_: str) -> None:
    needs("mpiexec.hydra", "ip")
    hosts = [f"shl-{os.getpid()}-{end}" for end in "ab"]
    both = [NETWORK.format(a=hosts[0], b=hosts[1]), *(NAT.format(a=host) for host in hosts)]
    try:
        for words in filter(None, "".join(both).splitlines()):
            made = subprocess.run(["ip", *words.split()], capture_output=True, text=True, check=False)
            if made.returncode != 0:
                raise Skip(f"no network namespaces can be made here: {made.stderr.strip()}")
        command = [sys.executable, str(HERE), "--rank", "shouter", "gloo"]
        ranks = [["-n", "1", *ENTER, host, *command] for host in hosts]
        says = start("mpiexec.hydra", *ranks[0], ":", *ranks[1], GLOO_SOCKET_IFNAME="eth0")
        assert says.count("gloo: rank") == 2, says
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


def meet_the_dead(life: str, deadline: int) -> None:
    """Jobs in which each rank in turn is the one that dies, on one host and on two; all at the same time, since they mostly wait. `life` is
    what that rank does: `nothing`, or it `joins` as the others do and is killed then. Prints a JSON line for each other rank."""
    import datetime

    import torch.distributed as dist

    import shouter.torch

    jobs = [(size, hosts, victim) for size, hosts in ((3, 1), (4, 2)) for victim in range(size)]
    free = [socket.create_server(("127.0.0.1", 0)) for _ in jobs]
    ports = [each.getsockname()[1] for each in free]
    for each in free:
        each.close()
    for (size, hosts, victim), port in zip(jobs, ports):
        here = size // hosts
        for number in range(size):
            if os.fork() != 0:
                continue
            place = {"RANK": number, "SIZE": size, "LOCAL_RANK": number % here, "LOCAL_SIZE": here, "PORT": port, "KEY": "0123456789abcdef" * 2}
            os.environ.update({f"SHOUTER_{name}": str(value) for name, value in place.items()}, SHOUTER_ADDR="127.0.0.1")
            if number == victim:
                if life == "joins":
                    shouter.init(transport="kernel", mode="caller", measure_costs="off")
                os.kill(os.getpid(), signal.SIGKILL)
            began, says = monotonic(), "it has met a dead rank"
            try:
                dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=deadline))
            except Exception as why:  # noqa: BLE001
                says = f"{type(why).__name__}: {why}"
            line = {"size": size, "victim": victim, "rank": number, "says": says, "took": monotonic() - began}
            os.write(1, (json.dumps(line) + "\n").encode())
            os._exit(0)
    for _ in range(sum(size for size, _, _ in jobs)):
        os.wait()


def named_by_all(life: str, deadline: int) -> None:
    says = start(sys.executable, str(HERE), "--meet", life, str(deadline), SHOUTER_DUMP_FOLDER=tempfile.gettempdir())
    told = [json.loads(line) for line in says.splitlines()]
    assert len(told) == 3 * 2 + 4 * 3, says
    for each in told:
        # It may name itself, as the one that has not reached rank 0.
        named = {int(number) for number in re.findall(r"\brank (\d+)", each["says"])} - {each["rank"]}
        assert named == {each["victim"]} and each["took"] < 20, each


def a_rank_that_does_not_come(_: str) -> None:
    named_by_all("nothing", 6)


def a_rank_that_dies_while_it_meets(_: str) -> None:
    named_by_all("joins", 50)


def check_of_the_hosts(program: str) -> None:
    needs(program, "mpirun.openmpi", "mpiexec.hydra")
    what = (program, "check", "--json", "--seconds", "0.05", "--factor", "1000000")
    launchers = [["mpirun.openmpi", "--oversubscribe", "--bind-to", "none", "-n", "2"], ["mpiexec.hydra", "-n", "2"]]
    if os.geteuid() == 0 and all(map(shutil.which, ("slurmctld", "slurmd", "munged", "srun"))):
        launchers.append([str(SLURM), "srun", "--mpi=pmix", "-n", "2", "-O"])
    for launcher in launchers:
        says = start(*launcher, *what)
        assert '"size":2' in says, (launcher, says)


def no_launcher(_: str) -> None:
    """All that neither a launcher nor the settings give is named, with what to do."""
    some = {"SHOUTER_RANK": "0", "SHOUTER_SIZE": "2"}
    for given, lacking in (
        ({}, "`size`, `rank`, `local_size`, `addr`, `port` and `key` are missing"),
        (some, "`local_size`, `addr`, `port` and `key` are missing"),
        (some | {"SHOUTER_LOCAL_SIZE": "2", "SHOUTER_PORT": "7000"}, "`key` is missing"),
    ):
        try:
            start(sys.executable, str(HERE), "--rank", "shouter", **given)
        except AssertionError as why:
            for word in (lacking, "python -m shouter run", "MASTER_ADDR", "ConfigError"):
                assert word in str(why), (word, why)
        else:
            raise AssertionError(f"a rank with {given} has joined something")


def wrong_settings(program: str) -> None:
    """Each is named, also a time in whose place `timeout=` is; how to start ranks is not what they lack."""
    needs(program)
    for name, value in (("CHANNEL_NUM", "abc"), ("DEADLINE", "-1"), ("RENDEZVOUS_DEADLINE", "soon")):
        try:
            start(program, "run", "-n", "2", "--", sys.executable, str(HERE), "--rank", "shouter", **{f"SHOUTER_{name}": value})
        except AssertionError as why:
            assert f"SHOUTER_{name}: `{name.lower()}` cannot be" in str(why) and "MASTER_ADDR" not in str(why), why
        else:
            raise AssertionError(f"{name}={value} was taken")


def figures_of_the_job_alone(program: str) -> None:
    """The job in which the ranks meet shows no counters, and says nothing of a folder that is not there."""
    needs(program)
    with socket.create_server(("127.0.0.1", 0)) as free:
        # The first of two ports below those that the kernel gives away.
        port = 10_000 + free.getsockname()[1] % 10_000
    words = (program, "run", "-n", "2", "--", sys.executable, str(HERE), "--rank", "gloo")
    environment = environment_of(SHOUTER_METRICS=f"127.0.0.1:{port}", SHOUTER_DUMP_FOLDER="/nowhere", SHOUTER_LOG="info")
    ended = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0 and said.count("gloo: rank") == 2, said
    assert "/nowhere" not in said and str(port) not in said, said


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "shouter"
    checks: list[Callable[[str], None]] = [
        shouter_run,
        groups_of_some_ranks,
        open_mpi,
        mpich,
        slurm,
        two_network_namespaces,
        a_rank_that_does_not_come,
        a_rank_that_dies_while_it_meets,
        check_of_the_hosts,
        no_launcher,
        wrong_settings,
        figures_of_the_job_alone,
    ]
    passed = failed = skipped = 0
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            check(program)
        except Skip as why:
            print(f"skipped: {name}: {why}", flush=True)
            skipped += 1
        except Exception as why:  # noqa: BLE001
            print(f"FAILED: {name}: {why}", flush=True)
            failed += 1
        else:
            print(f"passed: {name}", flush=True)
            passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(sys.argv[2:])
    elif sys.argv[1:2] == ["--parts"]:
        parts()
    elif sys.argv[1:2] == ["--meet"]:
        meet_the_dead(sys.argv[2], int(sys.argv[3]))
    else:
        main()
