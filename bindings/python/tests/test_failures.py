"""What goes wrong, each with its exception."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Job, environment


def test_bad_input(job: Job) -> None:
    job(
        2,
        """
        def refused(call, *says, error=ArgumentError):
            try:
                call()
            except error as why:
                assert all(word in str(why) for word in says), (str(why), says)
                return why
            raise AssertionError(("not refused", says))

        refused(lambda: shouter.rank(), "call shouter.init first", error=Closed)
        g = shouter.init()
        refused(shouter.init, "called before")
        x = np.ones(8)
        refused(lambda: g.allreduce(x[::2]), "not contiguous", "ascontiguousarray")
        refused(lambda: g.allreduce(b"12"), "read-only", "out=")
        refused(lambda: g.allreduce(x, out=memoryview(bytes(64)).cast("d")), "the output is read-only")
        refused(lambda: g.allreduce(x, out=np.ones(8, "f4")), "the input is of f64", "the output of f32")
        refused(lambda: g.allreduce(x, out=np.ones(7)), "output has 7 elements, and 8 are needed")
        refused(lambda: g.allreduce(x[:6], out=x[2:]), "overlap")
        refused(lambda: g.allreduce(x, "median"), "median", "sum")
        refused(lambda: g.allreduce(x, "band"), "f64")
        refused(lambda: g.allreduce([1, 2]), "list", "no buffer")
        refused(lambda: g.allreduce(np.array(["a"])), "format")
        for name in ("allreduce", "broadcast", "reduce", "reducescatter", "alltoall", "scan", "exscan"):
            refused(lambda: getattr(g, name)(None), "no array is given")
            refused(lambda: getattr(g, name + "_async")(None), "no array is given")
        for name in ("allgather", "gather", "scatter"):
            refused(lambda: getattr(g, name)(None, None), "no array is given")
        refused(lambda: g.allreduce(x.astype(">f8")), "format")
        refused(lambda: g.allreduce(np.ones(3, "u1"), dtype="bfloat16"), "3 bytes")
        refused(lambda: g.allreduce(x, dtype="decimal"), "decimal")
        refused(lambda: g.allreduce(np.ones(4, np.float32), dtype="float64"), "is of f32, and is to be of f64")
        refused(lambda: g.send(np.ones(4, np.int32), 0, dtype="float32"), "is of i32, and is to be of f32")
        refused(lambda: g.allgather(x, x.copy()), "2 x 8 are needed")
        refused(lambda: g.alltoall(np.ones(3)), "2 x 1")
        refused(lambda: g.allgather(x, np.ones(9), counts=[1, 9]), "counts add up to 10")
        refused(lambda: g.allgather(None, np.ones(9), counts=[9, 9]), "9 elements" if g.rank else "add up to 18")
        refused(lambda: g.allgather(None, np.ones(9), counts=[]), f"none for rank {g.rank}")
        refused(lambda: g.reducescatter(np.ones(9), counts=[2**62, 2**62]), "counts say" if g.rank else "9 elements")
        refused(lambda: g.reducescatter(bytes(2), counts=[1, 1]), "read-only")
        refused(lambda: g.broadcast(x, 2), "root 2")
        refused(lambda: g.send(x, 5), "5")
        refused(lambda: g.sendrecv(x[:6], 1 - g.rank, x[2:], 1 - g.rank), "memory that is apart")
        refused(lambda: g.sendrecv_async(x, 1 - g.rank, x, 1 - g.rank), "memory that is apart")
        refused(lambda: g.group([0, 0]), "twice")
        for out in (-1, float("nan"), 10**400, 10**5000):
            refused(lambda: g.allreduce_async(x).wait(out), "timeout")
            refused(lambda: g.split(0, deadline=out), "deadline")
            refused(lambda: g.group([0, 1], deadline=out), "deadline")
        refused(lambda: g.register([shouter.Tensor("t", 3, kind="sort")]), "sort")
        # The elements of a registered tensor have the type that it was registered with; bytes, and words as bfloat16, have none.
        weights, halves = g.register([shouter.Tensor("weights", 6), shouter.Tensor("halves", 6, "bfloat16")])
        for wrong in (np.ones(3), np.ones(6, "i4"), np.ones(6, ">f4"), np.ones(3, object)):
            refused(lambda: g.push(weights, wrong), "the input is of", "f32", "astype")
        refused(lambda: g.push(weights, np.ones(6, "f4"), out=np.ones(6, "u4")), "the output is of u32", "f32")
        refused(lambda: g.push(halves, np.ones(6, "f2")), "the input is of f16", "bf16")
        for tensor, array in ((weights, np.ones(6, "f4")), (weights, bytearray(24)), (halves, np.zeros(6, "u2"))):
            g.push(tensor, array).wait()
        # Integers that the argument's type cannot hold name the argument and its range; others than integers are TypeErrors.
        y, ones = x.copy(), [1] * g.size
        for out in (-1, 2**32, 10**5000):
            for root in (g.broadcast, g.reduce, g.broadcast_async, g.reduce_async):
                refused(lambda: root(x, root=out), "root", "ranks count from 0")
            for root in (g.gather, g.scatter, g.gather_async, g.scatter_async):
                refused(lambda: root(x, y, root=out), "root", "ranks count from 0")
            for rank in (g.send, g.send_async, g.recv, g.recv_async):
                refused(lambda: rank(x, out), "rank", "ranks count from 0")
                refused(lambda: rank(x, 1 - g.rank, tag=out), "tag", "from 0 to 4294967295")
            for both in (g.sendrecv, g.sendrecv_async):
                refused(lambda: both(x, out, y, 0), "rank", "ranks count from 0")
                refused(lambda: both(x, 0, y, out), "rank", "ranks count from 0")
                refused(lambda: both(x, 0, y, 0, tag=out), "tag", "from 0 to 4294967295")
                refused(lambda: both(x, 0, y, 0, receive_tag=out), "tag", "from 0 to 4294967295")
            refused(lambda: g.push(out, x), "tensor", "from 0 to 4294967295")
            refused(lambda: g.split(out), "color", "from 0 to 4294967295")
            refused(lambda: g.group([0, out]), "rank", "ranks count from 0")
            refused(lambda: g.job_rank(out), "rank", "ranks count from 0")
            refused(lambda: g.register([shouter.Tensor("t", 3, kind="broadcast", root=out)]), "root", "ranks count from 0")
        for out in (-1, 2**64):
            for counted in (g.allgather, g.reducescatter, g.allgather_async, g.reducescatter_async):
                refused(lambda: counted(x, y, counts=[1, out]), f"count {out}", "from 0 to")
            for counted in (g.gather, g.scatter, g.gather_async, g.scatter_async):
                refused(lambda: counted(x, y, counts=[1, out]), f"count {out}", "from 0 to")
            refused(lambda: g.alltoall(x, y, given=[1, out], taken=ones), f"count {out}", "from 0 to")
            refused(lambda: g.alltoall(x, y, given=ones, taken=[out, 1]), f"count {out}", "from 0 to")
            refused(lambda: g.register([shouter.Tensor("t", out)]), f"elements {out}", "from 0 to")
            refused(lambda: g.register([shouter.Tensor("t", counts=[1, out], kind="allgather")]), f"count {out}", "from 0 to")
            refused(lambda: g.set_step(out), f"step {out}", "from 0 to")
        for shape in (-1, [2, -1], [-1, -1]):
            refused(lambda: g.empty(shape), "shape", "lengths are 0 or more")
        refused(lambda: g.empty(2**64), "number of bytes", "from 0 to")
        odd = type("Odd", (int,), {"__str__": lambda self: "x" + "é" * 40})
        refused(lambda: g.empty(odd(2**64)), "number of bytes", "from 0 to")
        refused(lambda: g.split(0, 2**63), "key", "from -9223372036854775808")
        refused(lambda: g.broadcast(x, 0.5), "integer", error=TypeError)
        refused(lambda: g.send(x, "1"), "integer", error=TypeError)
        refused(lambda: g.group([0, None]), "integer", error=TypeError)
        g.barrier()
        x = np.ones(8); g.allreduce(x); assert (x == 2).all()  # The group goes on.

        # Ranks that disagree end the group, with both views.
        why = refused(lambda: g.allreduce(np.ones(3 + g.rank)), error=Mismatch)
        assert why.ours and why.theirs and why.operation == "all_reduce" and why.rank is not None, vars(why)
        refused(g.barrier, error=(Closed, Mismatch))
        shouter.abort()
        assert not shouter.is_initialized()
        """,
    )


def test_a_send_that_failed_after_it_returned_is_the_error_of_the_next(job: Job) -> None:
    job(
        2,
        """
g = shouter.init()
ones = np.ones(5, "f4")
if g.rank == 0:
    g.send(ones, 1)
else:
    try:
        g.recv(np.zeros(3, "f4"), 0)
        raise AssertionError("it has no room for the message")
    except Mismatch as why:
        assert (why.rank, why.reason) == (0, None), vars(why)
g.barrier()
if g.rank == 0:
    try:
        g.send(2 * ones[:3], 1)
        raise AssertionError("the send before has failed")
    except Mismatch as why:
        assert (why.rank, why.reason) == (1, None), vars(why)
        assert "an earlier send to this rank has failed" in str(why) and "This send was not started: call it again" in str(why), why
    g.send(3 * ones[:3], 1)
else:
    x = np.zeros(3, "f4")
    g.recv(x, 0)
    assert (x == 3).all(), x
try:
    g.allreduce(np.ones(3 + g.rank, "f4"))
    raise AssertionError("sizes differ")
except Mismatch as why:
    assert (why.rank, why.reason) == (1 - g.rank, "diverged"), vars(why)
shouter.abort()
""",
    )


def test_another_thread_ends_a_call_that_waits(job: Job) -> None:
    job(
        2,
        """
        import threading, time

        g = shouter.init(deadline="60s")
        g.barrier()
        if g.rank == 0:
            begun = time.monotonic()
            threading.Timer(1, shouter.abort).start()
            try:
                g.allreduce(np.ones(3))
                raise AssertionError("not ended")
            except ShouterError:
                assert time.monotonic() - begun < 30, "the deadline ended it"
        else:
            # This rank makes no call for two seconds, then gets the end from its next call.
            time.sleep(2)
            try:
                g.allreduce(np.ones(3))
                raise AssertionError("not ended")
            except (PeerFailed, Closed):
                pass
        """,
    )


def test_a_receive_is_cancelled_as_long_as_nothing_has_come(job: Job) -> None:
    job(
        2,
        """
        import sys

        g = shouter.init(deadline="60s")
        if g.rank == 0:
            x = np.zeros(3)
            before = sys.getrefcount(x)
            work = g.recv_async(x, 1, 5)
            try:
                work.wait(0.01); assert False
            except shouter.Timeout:
                pass
            assert work.cancel() and work.done() and not work.cancel()
            assert sys.getrefcount(x) == before, "its memory is kept"
            try:
                work.wait(); assert False
            except shouter.ArgumentError as why:
                assert "cancelled" in str(why), why
            # A message and a collective that are over, or are none of the kind, go on.
            g.barrier()
            work = g.recv_async(x, 1, 6)
            assert work.wait(30).elements == 3 and not work.cancel()
            work = g.barrier_async()
            assert not work.cancel()
            g.send(np.ones(1), 1)
            work.wait(30)
            # That of the cancelled one's tag is received by the next.
            assert g.recv(x, 1, 5).source == 1 and (x == 5).all()
        else:
            g.barrier()
            g.send(np.full(3, 6.0), 0, 6)
            g.recv(np.zeros(1), 0)
            g.barrier()
            g.send(np.full(3, 5.0), 0, 5)
        g.close()
        """,
    )


def test_close_waits_for_a_recv_of_another_thread(job: Job) -> None:
    job(
        2,
        """
        import threading

        g = shouter.init(deadline="60s")
        if g.rank == 0:
            x, heard = np.zeros(3), []
            work = g.recv_async(x, 1)
            waits = threading.Thread(target=lambda: heard.append(work.wait()))
            waits.start()
            g.send(np.ones(1), 1)
            g.close()
            waits.join()
            assert heard[0].source == 1 and (x == 7).all(), (heard, x)
        else:
            # Rank 0 has nothing left to do but to close when this has come.
            g.recv(np.zeros(1), 0)
            g.send(np.full(3, 7.0), 0)
            g.close()
        """,
    )


def test_a_store_of_a_launcher_that_is_not_there() -> None:
    script = """
import shouter
try:
    shouter.init()
    raise SystemExit("joined")
except shouter.JoinError as why:
    assert why.rank == 1, why.rank
    for word in ("rank 1 cannot use the launcher's store", "unset them", "SHOUTER_PORT and SHOUTER_KEY", *WORDS):
        assert word in str(why), (word, str(why))
"""
    pmi1 = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "99"}
    pmix = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "none"}
    for variables, words in ((pmi1, ("PMI_FD=99", "mpiexec")), (pmix, ("PMIx", "mpirun"))):
        code = script.replace("*WORDS", ", ".join(map(repr, words)))
        subprocess.run([sys.executable, "-c", code], env=environment(**variables), check=True, timeout=60)


def test_a_key_file_that_others_may_read_is_taken_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("0123456789" * 4)
    script = "import shouter; shouter.init(rank=0, size=1); shouter.close()"
    for mode, warns in ((0o600, False), (0o400, False), (0o640, True), (0o644, True), (0o604, True)):
        path.chmod(mode)
        for extra in ({}, {"SHOUTER_LOG": "off"}):
            variables = environment(SHOUTER_KEY_FILE=str(path), **extra)
            ended = subprocess.run(
                [sys.executable, "-c", script], env=variables, check=True, timeout=60, capture_output=True, text=True
            )
            said = "others may read the key file" in ended.stderr and "chmod 600" in ended.stderr
            assert said == (warns and not extra), (oct(mode), extra, ended.stderr)


def test_others_hear_what_a_rank_has_raised(job: Job) -> None:
    """On its host and on another one, whoever it is, in an operation and in none; and the program's own hook is called."""
    for odd, how in ((0, "raise"), (1, "raise"), (3, "abort"), (2, "with"), (1, "half")):
        ended = job(
            4,
            f"""
            import sys, time
            sys.excepthook = lambda kind, error, trace: print(f"told of {{error}}", flush=True)
            g = shouter.init(deadline="60s", heartbeat_timeout="60s")
            half = g.split(g.rank % 2)
            g.barrier()
            text = "no data: “42” " + "x" * 2000
            if g.rank == {odd}:
                time.sleep(0.3)
                if "{how}" == "abort":
                    shouter.abort("ValueError: " + text)
                    sys.exit()
                if "{how}" == "half":
                    half.abort("ValueError: " + text)
                if "{how}" == "with":
                    with g:
                        raise ValueError(text)
                raise ValueError(text)
            begun = time.monotonic()
            if g.rank == ({odd} + 1) % 4:
                time.sleep(1)
            try:
                (half if g.rank == ({odd} + 2) % 4 else g).allreduce(np.ones(3 if {odd} % 2 else 50_000))
                raise AssertionError("not ended")
            except (PeerFailed, Closed) as why:
                rank = why.rank if g.rank != ({odd} + 2) % 4 else half.job_rank(why.rank)
                assert rank == {odd} and why.reason == "aborted", vars(why)
                assert "it has given up: ValueError: no data: “42” xxx" in str(why), why
                assert "x" * 900 in str(why) and "x" * 1100 not in str(why), why
                assert time.monotonic() - begun < 20, "not heard of at once"
                print(f"heard {{g.rank}}", flush=True)
            shouter.abort()
            """,
            ok=False,
            options=("--hosts", "2"),
            SHOUTER_TRANSPORT="kernel",
        )
        assert all(f"heard {rank}" in ended.stdout for rank in range(4) if rank != odd), (how, odd, ended.stdout + ended.stderr)
        assert ("told of no data" in ended.stdout) == (how != "abort"), ended.stdout


def test_a_group_has_a_deadline_of_its_own(job: Job) -> None:
    job(
        2,
        """
        import time

        g = shouter.init(deadline="2s")
        patient, hasty = g.group([0, 1], deadline=60), g.split(4, -g.rank, deadline=0.3)
        for wrong in (0, -1, 1e12):
            for make in (lambda: g.group([0, 1], deadline=wrong), lambda: g.split(4, deadline=wrong)):
                try:
                    make()
                    raise AssertionError("not refused")
                except ArgumentError as why:
                    assert "deadline" in str(why), why
        if g.rank == 1:
            time.sleep(3)
        patient.barrier()
        if g.rank == 1:
            # The other one's has failed.
            patient.recv(np.zeros(1), 0)
        try:
            hasty.barrier()
            raise AssertionError("not ended")
        except Deadline as why:
            assert g.rank == 0 and why.missing == [0], vars(why)
            patient.send(np.zeros(1), 1)
        except (PeerFailed, Closed) as why:
            assert g.rank == 1, vars(why)
        g.barrier()
        patient.barrier()
        """,
    )


def test_init_says_what_is_wrong() -> None:
    script = """
import shouter
for settings, error, word in [
    ({"rank": 3, "size": 2}, shouter.ConfigError, "rank"),
    ({"rank": 0, "size": 1, "node": 5}, shouter.ConfigError, "node 5"),
    ({"rank": 0, "size": 2, "rendezvous": "127.0.0.1:1"}, shouter.ConfigError, "key"),
    ({"rank": 0, "size": 1, "dedline": "3s"}, shouter.ConfigError, "deadline"),
    ({"rank": 0, "size": 1, "ports": [1]}, shouter.ArgumentError, "iplist"),
    ({"iplist": ["here"], "ports": 1}, shouter.ArgumentError, "here"),
    ({"iplist": ["127.0.0.1"], "ports": [-1]}, shouter.ArgumentError, "port -1"),
    ({"iplist": ["127.0.0.1"], "ports": 65_536}, shouter.ArgumentError, "from 0 to 65535"),
]:
    try:
        shouter.init(**settings)
        raise SystemExit(f"{settings} passed")
    except error as why:
        assert isinstance(why, ValueError) and word in str(why), why
g = shouter.init(rank=0, size=1)
x = bytearray([3]); g.allreduce(x); assert x[0] == 3
shouter.close()
with shouter.init(["127.0.0.1"], [45_671], channel_num=2):
    assert shouter.size() == 1
"""
    subprocess.run([sys.executable, "-c", script], env=environment(), check=True, timeout=60)


def test_joins_through_a_store(job: Job, tmp_path: Path) -> None:
    job(
        3,
        f"""
        import os
        class Files:
            folder = {str(tmp_path)!r}
            def set(self, key, value):
                path = os.path.join(self.folder, key.replace("/", "_"))
                with open(path + "." + str(os.getpid()), "wb") as file:
                    file.write(value)
                os.rename(file.name, path)
            def get(self, key):
                try:
                    with open(os.path.join(self.folder, key.replace("/", "_")), "rb") as file:
                        return file.read()
                except FileNotFoundError:
                    raise KeyError(key)
        rank = int(os.environ["SHOUTER_RANK"])
        for name in list(os.environ):
            if name.startswith("SHOUTER_"):
                del os.environ[name]
        for again in range(2):
            g = shouter.init(store=Files(), rank=rank, size=3, timeout=50)
            assert (g.local_rank, g.local_size) == (rank, 3)
            x = np.ones(3); g.allreduce(x); assert (x == 3).all()
            shouter.close()
        class Broken(Files):
            def set(self, key, value):
                raise OSError("the disk is full")
        if rank == 0:
            try:
                shouter.init(store=Broken(), rank=0, size=2, timeout=5)
                assert False
            except JoinError as why:
                assert "the disk is full" in str(why)
        """,
    )


def test_ctrl_c_ends_waits(job: Job) -> None:
    job(
        2,
        """
        import signal, threading, time, os
        # A shell starts background jobs with SIGINT ignored, and Python leaves it so.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        g = shouter.init()
        if g.rank == 0:
            waits = [
                lambda: g.allreduce(np.ones(3)),
                lambda: g.allreduce_async(np.ones(200_000)).wait(),
                lambda: g.recv(np.ones(1), 1, 5),
                lambda: g.group([0, 1]),
            ]
            for wait in waits:
                took = []
                # The machine may be busy: the best of a few counts.
                while not took or min(took) > 0.1 and len(took) < 20:
                    sent = []
                    def interrupt():
                        time.sleep(0.1)
                        sent.append(time.monotonic())
                        os.kill(os.getpid(), signal.SIGINT)
                    threading.Thread(target=interrupt).start()
                    try:
                        wait()
                        assert False
                    except KeyboardInterrupt:
                        took.append(time.monotonic() - sent[0])
                assert min(took) < 0.1, took
            g.send(np.ones(1), 1)
        else:
            g.recv(np.ones(1), 0)
        shouter.abort()
        """,
    )


def test_a_killed_rank_is_named(job: Job) -> None:
    ended = job(
        3,
        """
        import os, signal
        g = shouter.init()
        if g.rank == 1:
            # The messages arrive when the others' operations are in progress.
            for other in (0, 2):
                g.recv(np.zeros(1), other)
            os.kill(os.getpid(), signal.SIGKILL)
        work = g.allreduce_async(np.ones(100_000))
        g.send(np.ones(1), 1)
        try:
            work.wait()
            raise SystemExit("no error")
        except PeerFailed as why:
            assert (why.rank, why.reason, why.operation) == (1, "lost", "all_reduce"), vars(why)
        shouter.abort()
        # The process goes on, and can join again.
        alone = shouter.init(rank=0, size=1, local_rank=0, local_size=1)
        assert alone.size == 1
        print("survived")
        """,
        ok=False,
        SHOUTER_DUMP_FOLDER=".",
    )
    assert ended.stdout.count("survived") == 2, ended.stdout + ended.stderr


def test_ends_with_work_under_way(job: Job) -> None:
    ended = job(
        2,
        """
        import sys, time
        g = shouter.init()
        if g.rank == 0:
            works = [g.allreduce_async(np.ones(50_000)) for _ in range(5)]
            works[0].add_done_callback(lambda work: print("ended", type(work.exception()).__name__))
            sys.exit(0)
        try:
            time.sleep(0.5)
            [g.allreduce(np.ones(50_001)) for _ in range(5)]
        except (PeerFailed, Mismatch, Closed) as why:
            print("heard", why.rank)
        """,
        ok=False,
        SHOUTER_DUMP_FOLDER=".",
    )
    assert "ended" in ended.stdout and "heard" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize(("hosts", "culprit"), [(1, 0), (1, 2), (3, 0), (3, 2)])
def test_a_rank_that_raises_is_named(job: Job, hosts: int, culprit: int) -> None:
    ended = job(
        3,
        f"""
        culprit = {culprit}
        g = shouter.init()
        if g.rank == culprit:
            # The messages arrive when the others' operations are in progress.
            for other in {{0, 1, 2}} - {{culprit}}:
                g.recv(np.zeros(1), other)
            raise ValueError("there is no data")
        try:
            work = g.allreduce_async(np.ones(100_000))
            g.send(np.ones(1), culprit)
            work.wait()
        except PeerFailed as why:
            print("heard", why.rank, why.reason, "it has given up: ValueError: there is no data" in str(why))
        """,
        ok=False,
        options=("--hosts", str(hosts), "--transport", "kernel"),
        SHOUTER_DUMP_FOLDER=".",
    )
    assert ended.stdout.count(f"heard {culprit} aborted True") == 2, ended.stdout + ended.stderr


def test_two_jobs_at_once(job: Job) -> None:
    script = """
        g = shouter.init()
        for length in (1, 100_000):
            x = np.ones(length); g.allreduce(x); assert (x == 2).all()
        shouter.close()
        """
    with ThreadPoolExecutor() as jobs:
        list(jobs.map(lambda _: job(2, script), range(2)))


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        script = f"""
import shouter
try:
    shouter.init(rank=0, size=2, local_size=2, local_rank=0, addr="127.0.0.1", port={port}, key="00" * 32, timeout=20)
    raise SystemExit("joined")
except shouter.ShouterError as why:
    assert "{port}" in str(why) and "in use" in str(why), (type(why), why)
"""
        subprocess.run([sys.executable, "-c", script], env=environment(), check=True, timeout=60)


def test_fork_is_refused(job: Job) -> None:
    job(
        2,
        """
        import gc, os
        g = shouter.init()
        work = g.allreduce_async(np.ones(3))
        child = os.fork()
        if child == 0:
            said = 0
            for call in (g.barrier, lambda: g.allreduce_async(np.ones(3)), lambda: g.empty(3)):
                try:
                    call()
                except Closed as why:
                    said += "forked" in str(why)
            del work, g; gc.collect()
            # It can be a job of its own.
            alone = shouter.init(rank=0, size=1, local_rank=0, local_size=1)
            alone.barrier(); shouter.close()
            os._exit(0 if said == 3 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        work.wait(); g.barrier(); shouter.close()
        """,
    )
