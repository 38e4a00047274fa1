"""Checks shouter.jax: jobs of ranks that run the checks below, and the example. Ends with `N passed, N failed, N skipped`.

    python tests/jax/checks.py [PROGRAM]

Runs with the interpreter whose JAX is to be tested, and with the package `shouter` on PYTHONPATH. PROGRAM is `shouter`, else the one in PATH.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frame"))

import checks_frame  # noqa: E402
from checks_frame import ROOT, Frame, Job, finish, killed, numbers, program, snippets_of  # noqa: E402


# The checks, each by all ranks of a job. Every rank knows every other's arrays.


def of(rank: int, shape: tuple[int, ...] = (3, 4), dtype: Any = "float32") -> Any:
    return jnp.asarray(numbers(rank, shape).astype(jnp.dtype(dtype)))


def everyone(*args: Any) -> list[Any]:
    """As arrays of NumPy: JAX would compile every calculation with them."""
    return [np.asarray(of(rank, *args)) for rank in range(shouter.size())]


def same(found: Any, expected: Any, what: object = "") -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype, (what, found, expected)
    found, expected = (np.asarray(each).astype("complex64") for each in (found, expected))
    assert np.array_equal(found, expected), (what, found, expected)


def refused(call: Any, *words: str, error: Any = None) -> str:
    return checks_frame.refused(lambda: jax.block_until_ready(call()), *words, error=error or shouter.ArgumentError)


def both(call: Any, arrays: Any, expected: Any, what: object) -> None:
    """A call of an array or a tree of arrays, by itself and compiled."""
    for how in (call, jax.jit(call)):
        jax.tree.map(functools.partial(same, what=(what, how)), how(arrays), expected)


def every_call_with_every_type() -> None:
    types = "bool uint8 int8 uint16 int16 uint32 int32 float16 bfloat16 float32 complex64".split()
    rank, size = shouter.rank(), shouter.size()
    mine = {dtype: of(rank, (size * 2, 3), dtype) for dtype in types}
    all_of_them = {dtype: np.stack(everyone((size * 2, 3), dtype)) for dtype in types}
    both(sj.all_gather, mine, all_of_them, "all_gather")
    both(functools.partial(sj.broadcast, root=1), mine, {dtype: each[1] for dtype, each in all_of_them.items()}, "broadcast")
    both(functools.partial(sj.all_reduce, op="lor"), mine.pop("bool"), all_of_them.pop("bool").any(0), "all_reduce of bool")
    total = {dtype: each.astype("complex64" if dtype == "complex64" else "float64").sum(0).astype(dtype) for dtype, each in all_of_them.items()}
    both(sj.all_reduce, mine, total, "all_reduce")
    both(sj.reduce_scatter, mine, {dtype: each.reshape(size, 2, 3)[rank] for dtype, each in total.items()}, "reduce_scatter")
    numbers, columns = mine["float32"], all_of_them["float32"]
    for op, expected in (("max", columns.max(0)), ("min", columns.min(0)), ("prod", columns.prod(0))):
        same(sj.all_reduce(numbers, op), expected, op)
    assert np.allclose(sj.all_reduce(numbers, "avg"), columns.mean(0), atol=1e-6)


def sixty_four_bits() -> None:
    with jax.enable_x64(True):
        for dtype in ("float64", "int64", "uint64", "complex128"):
            found = jax.jit(sj.all_reduce)(of(shouter.rank(), (5,), dtype))
            assert found.dtype == dtype and np.array_equal(found, sum(everyone((5,), dtype))), found


def shapes_and_trees() -> None:
    rank, size = shouter.rank(), shouter.size()
    shapes = [(), (0,), (1,), (0, 3), (2, 0), (7,), (2, 3, 5, 7), (300_001,)]
    mine, all_of_them = [of(rank, shape) for shape in shapes], [np.stack(everyone(shape)) for shape in shapes]
    both(sj.all_reduce, mine, [each.sum(0) for each in all_of_them], "all_reduce")
    both(sj.all_gather, mine, all_of_them, "all_gather")
    tree = {"a": of(rank), "b": [of(rank, (5,), "int32"), (of(rank, ()),)]}
    sums = {"a": sum(everyone()), "b": [sum(everyone((5,), "int32")), (sum(everyone(())),)]}
    both(sj.all_reduce, tree, sums, "tree")
    assert sj.all_reduce({}) == {} and sj.all_reduce(2.0) == 2.0 * size
    # An input that is used behind its reduction keeps its value.
    before = of(rank)
    total, kept = jax.jit(lambda x: (sj.all_reduce(x), x + 0))(before)
    same(kept, before)
    same(total, sum(everyone()))


def derivatives() -> None:
    """Of the sum of all ranks' losses, each of which weighs what it gets by its rank + 1."""
    rank, size = shouter.rank(), shouter.size()
    x, weight, weights = of(rank, (size * 2,)), rank + 1.0, sum(range(1, size + 1))
    ones = np.ones(x.shape, np.float32)
    for wrap in (lambda call: call, lambda call: jax.jit(jax.checkpoint(call))):
        gradient = lambda call: jax.grad(wrap(lambda x: (call(x) * weight).sum()))(x)  # noqa: E731
        same(gradient(sj.all_reduce), ones * weights)
        assert np.allclose(gradient(lambda x: sj.all_reduce(x, "avg")), ones * weights / size)
        # Element i of the result is rank i's part.
        same(gradient(sj.all_gather), ones * weights)
        own = np.repeat(np.arange(1, size + 1, dtype=np.float32), 2)
        same(gradient(sj.reduce_scatter), own)
        assert np.allclose(gradient(lambda x: sj.reduce_scatter(x, "avg")), own / size)
        same(gradient(lambda x: sj.broadcast(x, 1)), ones * (weights if rank == 1 else 0))
    value, slope = jax.jvp(lambda x: sj.all_reduce(x) ** 2, (x,), (jnp.asarray(ones),))
    total = sum(everyone((size * 2,)))
    same(value, total**2)
    same(slope, 2 * total * size)
    # Not linear in the reduction, and twice: the second derivative of its square.
    second = jax.jit(jax.grad(lambda x: jax.grad(lambda x: (sj.all_reduce(x) ** 2).sum())(x).sum()))(x)
    same(second, ones * 2 * size * size)
    refused(lambda: jax.grad(lambda x: sj.all_reduce(x, "max").sum())(x), "max", "no derivative", error=NotImplementedError)

    def with_a_count(x: Any) -> Any:
        """Of a tree of floats, integers, truth values and what does not depend on the variable."""
        loss, right, other = sj.all_reduce(((x**2).sum(), (x > 1).sum(), jnp.ones(2)))
        return loss, (right, other)

    (loss, (right, _)), slope = jax.jit(jax.value_and_grad(with_a_count, has_aux=True))(x)
    columns = np.stack(everyone((size * 2,)))
    assert loss == (columns**2).sum() and right == (columns > 1).sum() and np.array_equal(slope, 2 * size * x)
    part = shouter.split(rank % 2)
    inside = jax.grad(lambda x: jax.lax.scan(lambda c, _: (sj.all_reduce(c, group=part), None), x, length=3)[0].sum())
    same(jax.jit(inside)(x), ones * part.size**3)
    part.close()


def batches() -> None:
    rank, size = shouter.rank(), shouter.size()
    shape = (2, size, 3)
    x, total = of(rank, shape), sum(everyone(shape))
    for axis in (0, -1):
        one = functools.partial(jax.vmap, in_axes=axis, out_axes=0)
        same(one(sj.all_reduce)(x), np.moveaxis(total, axis, 0))
        gathered = np.stack([np.moveaxis(each, axis, 0) for each in everyone(shape)], 1)
        same(jax.jit(one(sj.all_gather))(x), gathered)
    same(jax.vmap(sj.reduce_scatter)(x), total[:, rank : rank + 1])
    same(jax.vmap(sj.reduce_scatter, in_axes=2, out_axes=2)(jnp.moveaxis(x, 0, 1)), np.moveaxis(total, 0, 1)[rank : rank + 1])


def control_flow() -> None:
    size = shouter.size()
    ones = jnp.ones(3)
    last, seen = jax.jit(lambda x: jax.lax.scan(lambda carry, _: (sj.all_reduce(carry),) * 2, x, length=4))(ones)
    same(last, ones * size**4)
    same(seen[:, 0], jnp.array([float(size**power) for power in (1, 2, 3, 4)]))
    grown = jax.jit(lambda x: jax.lax.while_loop(lambda x: x[0] < 50, sj.all_reduce, x))(ones)
    assert grown[0] >= 50
    chosen = jax.jit(lambda yes, x: jax.lax.cond(yes, sj.all_reduce, lambda x: -x, x))
    same(chosen(True, ones), ones * size)
    same(chosen(False, ones), -ones)


def order() -> None:
    """Reductions of one program that do not depend on each other, of many shapes, in every program the same; and programs in a row."""
    rank = shouter.rank()
    arrays = [of(rank, (1 + at * 97 % 1000,)) for at in range(60)]
    sums = [sum(everyone(array.shape)) for array in arrays]
    many = jax.jit(lambda arrays: [sj.all_reduce(array) for array in arrays])
    for _ in range(10):
        # Nothing waits in between.
        first, second = many(arrays), many(arrays[::-1])
        for found, expected in zip(first + second, sums + sums[::-1]):
            same(found, expected)


def groups() -> None:
    rank, size = shouter.rank(), shouter.size()
    half = shouter.split(rank % 2)
    members = range(rank % 2, size, 2)
    both(functools.partial(sj.all_reduce, group=half), of(rank), sum(np.asarray(of(member)) for member in members), "half")
    reduce = jax.jit(lambda x: sj.all_reduce(x, group=half))
    same(reduce(of(rank)), sum(np.asarray(of(member)) for member in members))
    half.close()
    refused(lambda: reduce(of(rank)), "is closed", error=jax.errors.JaxRuntimeError)
    same(jax.jit(sj.all_reduce)(of(rank)), sum(everyone()))


def what_is_refused() -> None:
    size = shouter.size()
    refused(lambda: sj.all_reduce(jnp.ones(3), "median"), "median")
    refused(lambda: sj.broadcast(jnp.ones(3), size), f"root {size}")
    refused(lambda: sj.broadcast(jnp.ones(3), 1.0), "root 1.0", "whole number")
    refused(lambda: jax.jit(sj.broadcast)(jnp.ones(3), 1), "root", "whole number")
    same(sj.broadcast(jnp.full(3, shouter.rank()), jnp.array(1)), np.full(3, 1, "int32"))
    refused(lambda: sj.all_reduce(jnp.ones(3), None), "op None")
    for call in (sj.all_reduce, sj.reduce_scatter, sj.all_gather, sj.broadcast):
        refused(lambda: call(jnp.ones(size), group=5), "group 5")  # noqa: B023
    refused(lambda: sj.reduce_scatter(jnp.ones(size + 1)), "multiple")
    refused(lambda: sj.reduce_scatter(jnp.ones(())), "multiple")
    refused(lambda: sj.all_reduce(jnp.ones(3, "int4")), "int4")
    for dtype, op in (("complex64", "max"), ("bool", "sum"), ("float32", "band")):
        refused(lambda: sj.all_reduce(jnp.ones(3, dtype), op), f"there is no {op} of")
    same(sj.all_reduce(jnp.ones(3)), jnp.ones(3) * size)


def shapes_that_differ() -> None:
    """The program gets both views; then the group has ended, and the same compiled program runs in the next one."""
    rank, size = shouter.rank(), shouter.size()
    # XLA runs a large program beside Python's thread, and a small one in it.
    for large in (False, True):
        reduce = jax.jit(lambda x: sj.all_reduce(x @ jnp.eye(len(x)) @ jnp.eye(len(x)) if large else x))  # noqa: B023
        ones, more = (jnp.ones((30, 30)), jnp.ones((40, 40))) if large else (jnp.ones(3), jnp.ones(4))
        same(reduce(ones), ones * size)
        refused(lambda: reduce(more if rank == 1 else ones), error=jax.errors.JaxRuntimeError)  # noqa: B023
        refused(lambda: reduce(ones), error=jax.errors.JaxRuntimeError)  # noqa: B023
        shouter.abort()
        refused(lambda: reduce(ones), "shouter.init", error=jax.errors.JaxRuntimeError)  # noqa: B023
        shouter.init()
        same(reduce(ones), ones * size)


def a_program_that_is_left() -> None:
    """The other ranks never come: the group's end on this rank ends the program, whose error says so."""
    rank = shouter.rank()
    reduce = jax.jit(lambda x: sj.all_reduce(x @ jnp.eye(30)))
    jax.block_until_ready(reduce(jnp.ones((30, 30))))
    if rank == 0:
        running = reduce(jnp.ones((30, 30)))
        time.sleep(0.2)
        begun = time.monotonic()
        shouter.abort()
        refused(lambda: running, error=jax.errors.JaxRuntimeError)
        assert time.monotonic() - begun < 5
    else:
        refused(lambda: shouter.barrier(), "rank 0", error=shouter.ShouterError)
        shouter.abort()
    shouter.init()


def a_job_of_another_size() -> None:
    """A compiled program knows for which rank of how many it is."""
    reduce = jax.jit(sj.all_reduce)
    ones = jnp.ones(3)
    same(reduce(ones), ones * shouter.size())
    rank = shouter.rank()
    shouter.close()
    if rank == 0:
        shouter.init(rank=0, size=1, local_rank=0, local_size=1)
        refused(lambda: reduce(ones), "compiled for rank 0 of 3", "rank 0 of 1", error=jax.errors.JaxRuntimeError)
        jax.clear_caches()
        same(reduce(ones), ones)
        shouter.close()
    shouter.init()


def a_rank_that_is_killed() -> None:
    rank, size = shouter.rank(), shouter.size()
    step = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda _, x: sj.all_reduce(x) / size, x))

    def one() -> Any:
        running = step(jnp.ones(1000))
        return jax.block_until_ready(running)

    killed(one, rank == 1, jax.errors.JaxRuntimeError)
    shouter.abort()


VALUES = [
    every_call_with_every_type,
    sixty_four_bits,
    shapes_and_trees,
    derivatives,
    batches,
    control_flow,
    order,
    groups,
    what_is_refused,
    shapes_that_differ,
    a_program_that_is_left,
    a_job_of_another_size,
]
JOBS = {
    "one host": Job(["-n", "3"], 3, VALUES),
    "two hosts": Job(["--hosts", "2,1", "--transport", "kernel"], 3, [every_call_with_every_type, order]),
    "a death": Job(["-n", "3"], 3, [a_rank_that_is_killed], deaths=1),
}
FRAME = Frame(__file__, JOBS, 300, JAX_PLATFORMS="cpu")
start = FRAME.start


# Beside the jobs.


def example(program: str) -> None:
    """Two ranks learn what one does, to 1e-6, and end with the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        script = [sys.executable, str(ROOT / "examples/jax/digits.py"), "1"]
        alone = start(*script, folder + "/alone.npz", SHOUTER_SIZE="1", SHOUTER_RANK="0")
        assert alone.returncode == 0, alone.stderr
        two = start(program, "run", "-n", "2", "--", *script, folder + "/%r.npz")
        assert two.returncode == 0, two.stderr
        weights = [np.load(f"{folder}/{name}.npz") for name in ("alone", "0", "1")]
        for name in weights[0]:
            one, first, second = (each[name] for each in weights)
            assert np.array_equal(first, second) and np.abs(one - first).max() < 1e-6, name


def no_compiler(_: str) -> None:
    script = "import shouter, jax.numpy as jnp; from shouter import jax as sj; shouter.init(); sj.all_reduce(jnp.ones(3))"
    with tempfile.TemporaryDirectory() as folder:
        place = {"SHOUTER_SIZE": "1", "SHOUTER_RANK": "0", "XDG_CACHE_HOME": folder}
        ended = start(sys.executable, "-c", script, CXX="no-such-compiler", **place)
        assert ended.returncode == 1 and "no-such-compiler" in ended.stderr and "apt install g++" in ended.stderr, ended.stderr
        ended = start(sys.executable, "-c", script, CXX="false", **place)
        assert ended.returncode == 1 and "was not compiled for jaxlib" in ended.stderr, ended.stderr
        assert not list(Path(folder, "shouter").glob("jax*")), "what was not compiled is kept"


def without_jax(_: str) -> None:
    ended = start(sys.executable, "-c", "import sys; sys.modules['jax'] = None; import shouter.jax")
    assert ended.returncode == 1 and "pip install jax" in ended.stderr, ended.stderr


def snippets(program: str) -> None:
    """Those of docs/jax.md, each by two ranks."""
    for snippet in snippets_of("jax.md"):
        ended = start(program, "run", "-n", "2", "--", sys.executable, "-c", snippet)
        assert ended.returncode == 0, (snippet, ended.stdout, ended.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        import jax
        import jax.numpy as jnp

        import shouter
        from shouter import jax as sj

        shouter.init()
        FRAME.run_rank(sys.argv[2])
        shouter.close()
    else:
        calls = (example, no_compiler, without_jax, snippets)
        finish([FRAME.of_job(program(), name) for name in JOBS] + [FRAME.of_call(program(), call) for call in calls])
