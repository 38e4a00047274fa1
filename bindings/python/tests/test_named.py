"""Operations with names, as kernels of TensorFlow submit them, without TensorFlow: by the address that `_core.named_submit` is."""

from __future__ import annotations

from conftest import Job

# Calls that TensorFlow's kernels make, as bindings/python/src/named.rs has them.
SUBMITS = """
import ctypes
import resource
import threading
from shouter import _core

class Request(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("kind", ctypes.c_char_p), ("op", ctypes.c_char_p), ("dtype", ctypes.c_char_p), ("root", ctypes.c_uint32),
        ("is_fixed", ctypes.c_bool), ("is_awaited", ctypes.c_bool), ("input", ctypes.c_void_p), ("input_bytes", ctypes.c_size_t),
        ("output", ctypes.c_void_p), ("output_bytes", ctypes.c_size_t), ("given", ctypes.c_void_p), ("given_count", ctypes.c_size_t),
        ("taken", ctypes.c_void_p), ("taken_count", ctypes.c_size_t),
    ]

Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)
submit = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(Request), Done, ctypes.c_void_p)(_core.named_submit)
shouter.init()
group = shouter.world().split(0, shouter.rank())
number = group._core.named()
ended, errors = threading.Semaphore(0), []

@Done
def done(context, code, text):
    if code:
        errors.append(text.decode())
    ended.release()

def reduce(names):
    # All at the same time; each is an all-reduce of one number.
    values = (ctypes.c_float * len(names))(*[1.0] * len(names))
    for at, name in enumerate(names):
        place = ctypes.addressof(values) + 4 * at
        request = Request(name.encode(), b"all-reduce", b"sum", b"float32", 0, True, False, place, 4, place, 4)
        submit(number, ctypes.byref(request), done, at + 1)
    for _ in names:
        ended.acquire()
    assert not errors, errors[:3]
    assert list(values) == [shouter.size()] * len(names), list(values)

def used(call):
    # The operations of the library and their bytes.
    before = group.stats()
    call()
    return [group.stats()[counter] - before[counter] for counter in ("operations", "bytes_reduced")]
"""


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
