"""Operations with names, as kernels of TensorFlow submit them, without TensorFlow: by the address that `_core.named_submit` is."""

from __future__ import annotations

from conftest import Job

# Calls that TensorFlow's kernels make, as bindings/python/src/named.rs has them.
SUBMITS = """
import ctypes
import itertools
import resource
import threading
from shouter import _core

class Request(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("kind", ctypes.c_char_p), ("op", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("root", ctypes.c_uint32),
        ("is_fixed", ctypes.c_bool), ("is_awaited", ctypes.c_bool), ("run", ctypes.c_int64), ("input", ctypes.c_void_p), ("input_bytes", ctypes.c_size_t),
        ("output", ctypes.c_void_p), ("output_bytes", ctypes.c_size_t), ("given", ctypes.c_void_p), ("given_count", ctypes.c_size_t),
        ("taken", ctypes.c_void_p), ("taken_count", ctypes.c_size_t),
    ]

Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
submit = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(Request), Done, ctypes.c_void_p)(_core.named_submit)
shouter.init()
group = shouter.world().split(0, shouter.rank())
number = group._core.named()
ended, errors, codes = threading.Semaphore(0), [], set()

@Done
def done(context, code, text):
    if code:
        errors.append(text.decode())
        codes.add(code)
    ended.release()

runs, kept = itertools.count(), []

def start(names, value=1.0, is_awaited=False, count=1, run=None):
    # One run of a function, or more of it: all at the same time; each is an all-reduce of one number.
    values, run = (ctypes.c_float * (count * len(names)))(*[value] * (count * len(names))), next(runs) if run is None else run
    # Until its operations have ended.
    kept[:] = [*kept[-2:], values]
    for at, name in enumerate(names):
        place = ctypes.addressof(values) + 4 * count * at
        request = Request(
            name.encode(), b"all-reduce", b"sum", b"float32", 0, True, is_awaited, run, place, 4 * count, place, 4 * count
        )
        submit(number, ctypes.byref(request), done, at + 1)
    return values

def end(names):
    for _ in names:
        assert ended.acquire(timeout=20), "an operation's end is not told"

def reduce(names, value=1.0, is_awaited=False):
    values = start(names, value, is_awaited)
    end(names)
    assert not errors, errors[:3]
    assert list(values) == [value * shouter.size()] * len(names), list(values)

def fails(names, why, is_awaited=False):
    start(names, is_awaited=is_awaited)
    end(names)
    assert len(errors) == len(names) and all(why in error for error in errors), (why, errors)
    errors.clear()

def used(call):
    # The operations of the library and their bytes.
    before = group.stats()
    call()
    return [group.stats()[counter] - before[counter] for counter in ("operations", "bytes_reduced")]
"""

# The same where each rank in turn is at odds with the others.
CULPRITS = (
    SUBMITS
    + """
me, size = shouter.rank(), shouter.size()

def alone(culprit):
    # One rank waits in vain until the others' operations have failed, too.
    if me == culprit:
        fails(["alone"], "not submitted by ranks")
    reduce(["all have failed"])
    if me != culprit:
        fails(["alone"], "'alone': not submitted by ranks")

def all_fail(count, why):
    assert len(errors) == count and all(why in error for error in errors), (count, why, errors)
    errors.clear()

def one_after_another(culprit, call):
    # Those that are not at odds, in the order of their ranks.
    for rank in range(size):
        if me == rank != culprit:
            call()
        shouter.world().barrier()
"""
)


def test_names_that_are_no_longer_used_cost_nothing(job: Job) -> None:
    job(
        2,
        SUBMITS
        + """
def each(count, what, at_once=100):
    for begin in range(0, count, at_once):
        reduce([f"{what} {number}" for number in range(begin, begin + at_once)])

# Those of a training step, and others that come once.
def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

each(10_000, "early")
before = memory()
for part in range(10):
    each(9_000, f"once {part}")
    reduce([f"in every step {number}" for number in range(100)])
assert memory() - before < 8_000, (before, memory())
operations, bytes = used(lambda: reduce(["at last"]))
# Rounds of at most 1,024 names, with two bits for each, beside a flag.
assert bytes < operations * 300, (operations, bytes)
# More names than that which come again and again have to be exchanged no more.
for _ in range(3):
    each(3_000, "of a cycle")
again = [used(lambda: reduce([f"of a cycle {number}"]))[0] for number in range(0, 3_000, 100)]
assert all(operations == 2 for operations in again), again
shouter.close()
""",
    )


def test_an_operation_is_told_of_a_rank_that_dies_while_another_has_joined(job: Job) -> None:
    # The rank dies with operations under way: the ranks tell each other then what the one without data takes part in.
    for rounds in (1, 3, 10):
        job_ended = job(
            3,
            SUBMITS
            + f"""
import os
import signal

names = [b"name %d" % at for at in range(100)]
reduce([name.decode() for name in names])
if shouter.rank() == 2:
    try:
        _core.named_join(number)
    except (PeerFailed, Closed):
        os._exit(0)
    raise AssertionError("rank 1 has not joined")
values = (ctypes.c_float * len(names))()
for number_of_round in itertools.count():
    if errors:
        break
    for at, name in enumerate(names):
        place = ctypes.addressof(values) + 4 * at
        request = Request(name, b"all-reduce", b"sum", b"float32", 0, True, False, next(runs), place, 4, place, 4)
        submit(number, ctypes.byref(request), done, at + 1)
    if shouter.rank() == 1 and number_of_round == {rounds}:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in names:
        assert ended.acquire(timeout=20), "an operation's end is not told"
assert not any("dropped" in why for why in errors), errors[:3]
# TensorFlow's UNAVAILABLE, also for those that are submitted when the rank is known to be dead.
start(["after its end"])
end(["after its end"])
assert codes == {{14}}, (codes, errors)
if shouter.rank() == 0:
    print("all were told", flush=True)
os._exit(0)
""",
            ok=False,
        )
        assert "all were told" in job_ended.stdout, job_ended.stdout + job_ended.stderr


def test_what_one_rank_refuses_alone_ends_nothing(job: Job) -> None:
    job(
        2,
        SUBMITS
        + """
import time

reduce(["before"])
if shouter.rank() == 0:
    for _ in range(1_000):
        _core.named_refuse(number, "nobody else's", "for a test", False)
# Longer than the deadline; no rank submits anything.
time.sleep(3)
reduce(["after"])
reduce(["nobody else's"])
# One that the other rank meets is told to it.
if shouter.rank() == 0:
    _core.named_refuse(number, "refused here", "for a test", False)
else:
    fails(["refused here"], "'refused here': rank 0 refuses its part: for a test")
reduce(["behind it"])
shouter.close()
""",
        SHOUTER_DEADLINE="1s",
    )


def test_a_name_that_some_ranks_submit_late_fails_there_too_and_meets_again(job: Job) -> None:
    job(
        3,
        CULPRITS
        + """
for culprit in range(size):
    others = ", ".join(str(rank) for rank in range(size) if rank != culprit)
    for is_awaited in (True, False):
        reduce([f"before {culprit}"])
        # All wait for something that others do not submit, and go on when that has failed. The second time is one more use.
        for _ in range(2):
            if me == culprit:
                fails([f"alone {culprit}"], f"not submitted by ranks {others} within 1s", is_awaited)
            else:
                fails([f"late {culprit}"], f"not submitted by rank {culprit} within 1s", is_awaited)
            reduce(["all have failed"])
        for _ in range(2):
            if me == culprit:
                fails([f"late {culprit}"], f"'late {culprit}': not submitted by rank {culprit} within 1s", is_awaited)
            else:
                fails([f"alone {culprit}"], f"'alone {culprit}': not submitted by ranks {others} within 1s", is_awaited)
        for use in range(3):
            reduce([f"alone {culprit}", f"late {culprit}"], float(use), is_awaited)
shouter.close()
""",
        SHOUTER_DEADLINE="1s",
    )


def test_a_run_that_fails_is_one_use_of_all_its_names(job: Job) -> None:
    job(
        3,
        CULPRITS
        + """
names = [f"gradient {at}" for at in range(10)]
reduce(names)
for culprit in range(size):
    # How much of its run the rank that is late submits before its executor stops.
    for left in (1, 4, 10):
        if me != culprit:
            fails(names, f"not submitted by rank {culprit} within 1s")
        alone(culprit)
        if me == culprit:
            fails(names[10 - left :], f"not submitted by rank {culprit} within 1s")
        for use in range(3):
            reduce(names, float(use))
    # What one rank refuses ends the others' run at once, what they wait for included.
    if me == culprit:
        _core.named_refuse(number, names[0], "for a test", True)
        reduce(["of others"])
        # The others' executors stop when all have been told.
        reduce(["when told"])
    else:
        start(names)
        start(["of others"])
        start(["when told"])
        end([*names, "of others", "when told"])
        vain = [error for error in errors if "the run of its function has failed" in error]
        assert len(vain) == len(names) - 1, errors
        all_fail(len(names), f"rank {culprit} refuses its part: for a test")
    for use in range(3):
        reduce(names, float(use))
    # The others' executors come to the refused operation when the refusing rank has begun its next run.
    for _ in range(2):
        run, lead = next(runs), len(names) - me
        if me == culprit:
            _core.named_refuse(number, names[0], "for a test", True)
            values = start(names, 7.0)
        else:
            start(names[lead:], -1.0, run=run)
        shouter.world().barrier()
        one_after_another(culprit, lambda: start(names[:lead], -1.0, run=run))
        end(names)
        if me == culprit:
            assert not errors, errors
        else:
            all_fail(len(names), f"rank {culprit} refuses its part: for a test")
            values = start(names, 7.0)
            end(names)
        assert list(values) == [7.0 * size] * len(names), list(values)
        for use in range(3):
            reduce(names, float(use))
    # A refusal that no other rank meets holds a run back no longer than the deadline, in which each rank waits in vain for the others.
    if me == culprit:
        _core.named_refuse(number, "of nobody else", "for a test", True)
    fails([f"of rank {me} alone"], "not submitted by ranks")
    reduce(names)
shouter.close()
""",
        SHOUTER_DEADLINE="1s",
    )


def test_a_rank_that_comes_late_to_a_name_that_is_two_things_fails_and_the_next_use_meets(job: Job) -> None:
    job(
        3,
        CULPRITS
        + """
for culprit in range(size):
    name = f"two things {culprit}"
    if me == culprit:
        reduce(["of all"])
        fails([name], f"'{name}': rank ")
    else:
        start([name], count=1 + (me + size - culprit) % size)
        start(["of all"])
        end([name, "of all"])
        assert len(errors) == 1 and "submit the same tensors on every rank" in errors[0], errors
        errors.clear()
    for use in range(3):
        reduce([name], float(use))
shouter.close()
""",
    )


def test_a_run_that_has_failed_misses_nothing_more(job: Job) -> None:
    job(
        3,
        CULPRITS
        + """
import time

of_f, of_g = ["f 0", "f 1", "f 2"], ["g 0", "g 1"]
reduce([*of_f, *of_g])

for culprit in range(size):
    # One rank has submitted a part of the run with which another one fails, and submits the rest then, or does not.
    part, is_whole = (me - culprit) % size, culprit != 1
    if part == 0:
        alone(culprit)
        fails(of_f, "not submitted by rank")
    else:
        run, first = next(runs), 3 if part == 1 else 1
        start(of_f[:first], run=run)
        end(of_f[:first])
        if is_whole:
            start(of_f[first:], run=run)
            end(of_f[first:])
        all_fail(3 if is_whole else first, "within 1s")
        alone(culprit)
    for use in range(3):
        reduce([*of_f, *of_g], float(use))
    # Two runs fail at once: each is one use of its own names, and remains one that has failed.
    if me == culprit:
        alone(culprit)
        fails(of_f, f"not submitted by rank {culprit} within 1s")
        fails(of_g, f"not submitted by rank {culprit} within 1s")
    else:
        f, g = next(runs), next(runs)
        start(of_f[:2], run=f)
        start(of_g, run=g)
        end([*of_f[:2], *of_g])
        began = time.monotonic()
        start(of_f[2:], run=f)
        end(of_f[2:])
        assert time.monotonic() - began < 1, "it waited for the deadline"
        all_fail(5, f"not submitted by rank {culprit} within 1s")
        alone(culprit)
    for use in range(3):
        reduce([*of_f, *of_g], float(use))
    # The same of names that are two things.
    names = [f"x {culprit}", f"y {culprit}"]
    run, first = next(runs), 1 if me == culprit else 2

    def start_first():
        start(names[:first], count=1 + (me + size - culprit) % size, run=run)

    one_after_another(culprit, start_first)
    if me == culprit:
        start_first()
    end(names[:first])
    start(names[first:], run=run)
    end(names[first:])
    all_fail(2, "submit the same tensors on every rank")
    for use in range(3):
        reduce(names, float(use))
shouter.close()
""",
        SHOUTER_DEADLINE="1s",
    )
