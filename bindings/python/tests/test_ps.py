"""The parameter server from Python: training, messages between actors, refused arguments, failures, checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

from conftest import Job

ROLES = """
from shouter import ps

group = shouter.init()
servers = ["server0", "server1"][: group.size - 2]
trainers = ["trainer0", "trainer1"]
actors = ps.Actors(group, names=servers + trainers)
"""


def test_training_equals_allreduce(job: Job) -> None:
    for ranks in (3, 4):
        job(
            ranks,
            ROLES
            + """
half = group.split(group.rank < len(servers))
plan = ps.Plan(servers, trainers, sharding="hashed" if group.size == 4 else "contiguous")
if actors.name in servers:
    served = ps.serve(actors, plan)
    assert served == ps.Served(None, []), served
else:
    with ps.Client(actors, plan) as client:
        weights = np.arange(60, dtype=np.float64).reshape(20, 3) / 7
        if half.rank == 0:
            client.set("weights", weights, ps.SGD(rate=0.125))
        client.wait_for_all()
        for step in range(4):
            client.set_step(step)
            gradient = np.sin(weights * (half.rank + step + 1))
            client.push("weights", gradient)
            half.allreduce(gradient, "avg")
            weights -= 0.125 * gradient
            assert (client.pull("weights") == weights).all()
        client.push_rows("weights", [0, 4, 4], np.ones((3, 3)) * (half.rank + 1))
        weights[0] -= 0.125 * 1.5
        weights[4] -= 0.125 * 3.0
        out = np.empty((20, 3))
        assert client.pull("weights", out) is out and (out == weights).all()
        assert client.members() == trainers
        client.wait_for_all()
shouter.close()
""",
        )


def test_optimizers(job: Job) -> None:
    job(
        3,
        ROLES
        + """
plan = ps.Plan(servers, trainers, average=False)
if actors.name in servers:
    ps.serve(actors, plan)
else:
    with ps.Client(actors, plan) as client:
        start, gradient = np.linspace(-1, 1, 8), np.cos(np.arange(8.0))
        if actors.name == "trainer0":
            client.set("momentum", start, ps.Momentum(0.1, 0.9))
            client.set("adagrad", start, ps.Adagrad(0.1, 1e-10))
            client.set("adam", start, ps.Adam(0.1))
        client.wait_for_all()
        momentum, adagrad, adam = start.copy(), start.copy(), start.copy()
        v, s, m, q = (np.zeros(8) for _ in range(4))
        for step in range(1, 6):
            for name in ("momentum", "adagrad", "adam"):
                client.push(name, gradient * step / 2)
            g = gradient * step
            v = 0.9 * v + g
            momentum -= 0.1 * v
            s += g * g
            adagrad -= 0.1 * g / (np.sqrt(s) + 1e-10)
            m, q = 0.9 * m + (1 - 0.9) * g, 0.999 * q + (1 - 0.999) * (g * g)
            adam -= 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(q / (1 - 0.999**step)) + 1e-8)
            for name, due in (("momentum", momentum), ("adagrad", adagrad), ("adam", adam)):
                np.testing.assert_allclose(client.pull(name), due, rtol=1e-13, atol=1e-15)
shouter.close()
""",
    )


def test_messages_by_name(job: Job) -> None:
    job(
        3,
        """
from shouter import ps
group = shouter.init()
names = ["master", "pserver", "trainer"]
actors = ps.Actors(group, names[group.rank])
assert actors.names == names and actors.rank("trainer") == 2
after, before = names[(group.rank + 1) % 3], names[group.rank - 1]
sent = actors.isend(after, np.full((2, 5), group.rank, np.int32), name="losses", step=9)
expected = actors.irecv(before)
found = expected.wait(20)
assert (found.source, found.name, found.step, found.array.shape) == (before, "losses", 9, (2, 5))
assert (found.array == (group.rank - 1) % 3).all() and found.array.dtype == np.int32
sent.wait()
assert sent.done()
# One of this size goes out when it is received.
large = actors.isend(after, np.zeros(1 << 20, np.uint8))
try:
    large.wait(0.05)
except shouter.Timeout as error:
    assert error.operation == "send" and error.after == 0.05 and "send" in str(error), error
else:
    raise AssertionError
group.barrier()
assert actors.irecv(before).wait(20).array.size == 1 << 20
large.wait(20)
for call in (lambda: actors.isend("nobody", np.ones(1)), lambda: actors.irecv("nobody")):
    try:
        call()
    except ps.UnknownActor as error:
        assert error.actor == "nobody" and isinstance(error, LookupError)
    else:
        raise AssertionError
try:
    actors.irecv().wait(0.1)
except ps.NoMessage as error:
    assert isinstance(error, TimeoutError)
else:
    raise AssertionError
shouter.close()
""",
    )


def test_refused_arguments(job: Job) -> None:
    job(
        2,
        """
from shouter import ps
group = shouter.init()
actors = ps.Actors(group, ["server", "trainer"][group.rank])
plan = ps.Plan(["server"], ["trainer"])
for bad in (
    dict(mode="fast"), dict(mode=-1), dict(mode=2**64), dict(sharding="round"), dict(lost="cry"), dict(deadline=-1.0), dict(deadline=10**400)
):
    try:
        ps.Client(actors, ps.Plan(["server"], ["trainer"], **bad))
    except ArgumentError:
        continue
    raise AssertionError(bad)
if group.rank == 0:
    ps.serve(actors, plan)
else:
    with ps.Client(actors, plan) as client:
        client.set_step(3)
        value = np.ones((4, 2), np.float32)

        def refused(kind, call):
            try:
                call()
            except kind as error:
                assert error.step == 3 and error.parameter == "w", str(error)
            else:
                raise AssertionError(kind)

        refused(ps.NotSet, lambda: client.push("w", value))
        refused(ps.NotSet, lambda: client.pull("w"))
        refused(ps.WrongType, lambda: client.set("w", np.ones(3, np.int64), ps.SGD(0.1)))
        client.set("w", value, ps.SGD(0.1))
        refused(ps.WrongShape, lambda: client.push("w", np.ones((2, 4), np.float32)))
        refused(ps.WrongType, lambda: client.push("w", np.ones((4, 2))))
        refused(ps.WrongRows, lambda: client.push_rows("w", [1, 4], np.ones((2, 2), np.float32)))
        refused(ps.WrongRows, lambda: client.push_rows("w", [2, 1], np.ones((2, 2), np.float32)))
        refused(ps.WrongShape, lambda: client.push_rows("w", [2], np.ones((2, 2), np.float32)))
        refused(ps.WrongShape, lambda: client.pull("w", np.ones(3, np.float32)))
        refused(ps.WrongShape, lambda: client.set("w", value[:3], ps.SGD(0.1)))
        out = np.zeros((2, 4), np.float32)
        refused(ps.WrongShape, lambda: client.pull("w", out))
        assert (out == 0).all()
        for call, text in (
            (lambda: client.pull("w", out), "'w': the shape of the array to pull into is [2, 4], and has to be [4, 2]"),
            (lambda: client.push_rows("w", [0, 1], value[:1]), "'w': the shape of the values is [1, 2], and has to be [2, 2]"),
            (lambda: client.set("new", np.ones(3, np.float16), ps.SGD(0.1)), "'new': the type of the value is f16, and has to be f32"),
        ):
            try:
                call()
            except ps.PsError as error:
                assert text in str(error), str(error)
            else:
                raise AssertionError(text)
        mask = np.array([False, True, False, True])
        for rows in ([1.0], [1.9], np.array([0.5]), [True], mask, [-1], [2**64], np.array([[1]]), ["1"]):
            try:
                client.push_rows("w", rows, value[: len(rows)])
            except ArgumentError as error:
                assert "rows" in str(error), str(error)
            else:
                raise AssertionError(rows)
        assert (client.pull("w") == value).all()
shouter.close()
""",
    )


def test_a_dead_trainer_is_dropped_or_ends_the_job(job: Job) -> None:
    for lost in ("drop", "end"):
        ended = job(
            3,
            ROLES
            + f"""
import os, signal
plan = ps.Plan(servers, trainers, lost="{lost}")
"""
            + """
if actors.name in servers:
    try:
        print("served", ps.serve(actors, plan).dropped, flush=True)
    except ps.TrainerLost as error:
        print("lost", error.actor, error.rank, flush=True)
else:
    client = ps.Client(actors, plan)
    if actors.name == "trainer0":
        client.set("w", np.zeros(5), ps.SGD(1.0))
    client.wait_for_all()
    if actors.name == "trainer1":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for step in range(3):
            client.push("w", -np.ones(5))
            print("pulled", client.pull("w")[0], flush=True)
        client.leave()
    except ps.TrainerLost as error:
        print("lost", error.actor, error.rank, flush=True)
shouter.abort()
""",
            ok=False,
        )
        if lost == "drop":
            assert "served ['trainer1']" in ended.stdout and "pulled 3.0" in ended.stdout, ended.stdout + ended.stderr
        else:
            assert ended.stdout.count("lost trainer1 2") == 2, ended.stdout + ended.stderr


def test_a_server_without_memory_says_so_and_all_go_on(job: Job) -> None:
    for lost in ("end", "drop"):
        job(
            4,
            """
import os, resource

def leave_room(bytes, pid=os.getpid()):
    # So much more address space than the process has in use.
    most = resource.RLIM_INFINITY
    if bytes is not None:
        with open(f"/proc/{pid}/statm") as pages:
            most = int(pages.read().split()[0]) * resource.getpagesize() + bytes
    resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))

# So the memory that the ranks of the host share is small.
leave_room(256 << 20)
"""
            + ROLES
            + f"""
plan = ps.Plan(servers, trainers, lost="{lost}")
"""
            + """
leave_room(None)
pids = np.zeros(group.size, np.int64)
group.allgather(np.array([os.getpid()]), pids)
server1 = int(pids[1])

def refused(name, call):
    try:
        call()
    except ps.NoMemory as error:
        assert (error.actor, error.parameter, error.step) == ("server1", name, 7) and isinstance(error, MemoryError), error
        assert f"step 7: server1 has no memory for '{name}': there is no memory for" in str(error), error
    else:
        raise AssertionError("there was memory")

if actors.name in servers:
    assert ps.serve(actors, plan) == ps.Served(None, [])
else:
    with ps.Client(actors, plan) as client:
        client.set_step(7)
        # 16 MiB for each server.
        value, gradient = np.arange(8 << 20, dtype=np.float32), np.ones(8 << 20, np.float32)
        if actors.name == "trainer0":
            client.set("u", value, ps.SGD(1.0))
            leave_room(4 << 20, server1)
            # It comes into the memory that the message before it has left, and has none to stay in.
            refused("v", lambda: client.set("v", value, ps.SGD(1.0)))
            leave_room(None, server1)
            client.set("v", value, ps.SGD(1.0))
            client.push("u", gradient)
            leave_room(4 << 20, server1)
            # The gradient before it waits for the other trainer in the memory that was left: this one cannot be received.
            refused("v", lambda: client.push("v", gradient))
            leave_room(None, server1)
        client.wait_for_all()
        if actors.name == "trainer1":
            client.push("u", gradient)
        # server0 has it of trainer0 already.
        client.push("v", gradient)
        for name in ("u", "v"):
            assert (client.pull(name) == value - 1).all(), name
        client.wait_for_all()
shouter.close()
""",
            # Large pieces are mapped anew, and not found in what the allocator holds in reserve.
            MALLOC_ARENA_MAX="1",
            MALLOC_MMAP_THRESHOLD_=str(1 << 20),
        )


def test_a_call_ends_within_twice_the_deadline(job: Job) -> None:
    # One server answers at the deadline, that a trainer is late, and the other one does not answer at all.
    ended = job(
        4,
        ROLES
        + """
import os, signal, time
plan = ps.Plan(servers, trainers, deadline=2.0)
pids = np.zeros(group.size, np.int64)
group.allgather(np.array([os.getpid()]), pids)
stopped = int(pids[1])
try:
    if actors.name in servers:
        ps.serve(actors, plan)
    else:
        client = ps.Client(actors, plan)
        if actors.name == "trainer0":
            client.set("w", np.zeros(1 << 20), ps.SGD(1.0))
        client.wait_for_all()
        if actors.name == "trainer1":
            # Nothing comes: it ends with the job.
            actors.irecv("trainer0").wait(60)
        client.push("w", np.ones(1 << 20))
        os.kill(stopped, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            client.pull("w", np.empty(1 << 20))
        except ps.ServerLost as error:
            print(f"took {time.monotonic() - begun} s: {error}", flush=True)
        os.kill(stopped, signal.SIGKILL)
except ShouterError as error:
    print(f"{actors.name}: {error}", flush=True)
os._exit(0)
""",
        ok=False,
        SHOUTER_HEARTBEAT_TIMEOUT="60s",
    )
    said = ended.stdout + ended.stderr
    took = re.search(r"took ([0-9.]+) s: .*server1 \(rank 1\) is lost while pulling 'w': no answer within 4s", ended.stdout)
    # One more wait would make it three times the deadline.
    assert took and 3.9 < float(took[1]) < 6, said


def test_checkpoints(job: Job, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    for restore in (False, True):
        job(
            4,
            ROLES
            + f"folder, restore = {str(folder)!r}, {restore}\n"
            + """
plan = ps.Plan(servers, trainers)
if actors.name in servers:
    ps.serve(actors, plan)
else:
    with ps.Client(actors, plan) as client:
        first = actors.name == "trainer0"
        if first and restore:
            client.set("w", np.zeros((7, 3)), ps.Adam())
            try:
                client.restore(folder)
            except ps.CheckpointError as error:
                assert "[10, 2]" in str(error), str(error)
            else:
                raise AssertionError
            client.reset()
            client.restore(folder)
        elif first:
            client.set("w", np.zeros((10, 2)), ps.Adam())
        client.wait_for_all()
        if restore:
            assert (client.pull("w") == np.load(folder + "/due.npy")).all()
        else:
            client.push("w", np.ones((10, 2)))
            w = client.pull("w")
            client.wait_for_all()
            if first:
                client.save(folder)
                np.save(folder + "/due.npy", w)
shouter.close()
""",
        )


def test_the_example_learns_with_the_bits_of_an_allreduce(job: Job) -> None:
    example = Path(__file__).parents[3] / "examples" / "ps_digits.py"
    for servers in (1, 2):
        run = f"import runpy, sys\nsys.argv = ['ps_digits.py', '{servers}', '2']\nrunpy.run_path({str(example)!r}, run_name='__main__')\n"
        ended = job(servers + 2, run)
        assert f"{servers} servers, 2 trainers: the same bits as an all-reduce" in ended.stdout, ended.stdout
