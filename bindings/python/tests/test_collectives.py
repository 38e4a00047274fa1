"""What each function computes, compared with NumPy."""

from __future__ import annotations

from conftest import Job


def test_collectives(job: Job) -> None:
    job(
        3,
        """
        g = shouter.init()
        me, n = shouter.rank(), shouter.size()
        assert (n, g.local_size, g.local_rank, g.nodes, g.node) == (3, 3, me, 1, 0)
        for length in (1, 7, 5000, 300_000):
            # The ranks' arrays, which every rank can compute.
            all = [np.arange(length * n, dtype=np.float64).reshape(n, length) * (rank + 1) for rank in range(n)]
            own = all[me]
            x = own[0].copy()
            assert shouter.allreduce(x) is x
            np.testing.assert_allclose(x, sum(a[0] for a in all))
            out = np.empty(length)
            assert shouter.allreduce(own[0], "max", out=out) is out
            np.testing.assert_array_equal(out, np.max([a[0] for a in all], axis=0))

            x = own[0].copy()
            assert shouter.broadcast(x, 2) is x
            np.testing.assert_array_equal(x, all[2][0])

            x = own[0].copy()
            got = shouter.reduce(x, "sum", 1)
            assert (got is x) == (me == 1)
            np.testing.assert_allclose(x, sum(a[0] for a in all) if me == 1 else own[0])

            out = np.empty((n, length))
            shouter.allgather(own[0], out)
            np.testing.assert_array_equal(out, [a[0] for a in all])
            out = np.zeros((n, length)); out[me] = own[0]
            shouter.allgather(None, out)
            np.testing.assert_array_equal(out, [a[0] for a in all])

            out = np.empty((n, length)) if me == 0 else None
            shouter.gather(own[0], out)
            if me == 0:
                np.testing.assert_array_equal(out, [a[0] for a in all])

            out = np.empty(length)
            shouter.scatter(own if me == 1 else None, out, 1)
            np.testing.assert_array_equal(out, all[1][me])

            shouter.reducescatter(own, out)
            np.testing.assert_allclose(out, sum(a[me] for a in all))

            out = np.empty((n, length))
            shouter.alltoall(own, out)
            np.testing.assert_array_equal(out, [a[me] for a in all])
            x = own.copy()
            assert shouter.alltoall(x) is x
            np.testing.assert_array_equal(x, [a[me] for a in all])

            x = own[0].copy()
            shouter.scan(x)
            np.testing.assert_allclose(x, sum(a[0] for a in all[: me + 1]))
            x = own[0].copy()
            shouter.exscan(x)
            np.testing.assert_allclose(x, sum(a[0] for a in all[:me]) if me else own[0])

            counts = [1, 0, length]
            out = np.empty(sum(counts))
            mine = np.full(counts[me], me + 0.5)
            shouter.allgather(mine, out, counts=counts)
            np.testing.assert_array_equal(out, np.repeat([0.5, 1.5, 2.5], counts))
            out[:] = 0
            shouter.gather(mine, out if me == 2 else None, 2, counts=counts if me == 2 else [])
            np.testing.assert_array_equal(out, np.repeat([0.5, 1.5, 2.5], counts) if me == 2 else 0)
            shouter.scatter(np.repeat([0.5, 1.5, 2.5], counts) if me == 1 else None, mine, 1, counts=counts if me == 1 else [])
            assert (mine == me + 0.5).all()
            shouter.reducescatter(np.ones(sum(counts)), mine, counts=counts)
            assert (mine == n).all()
            # In place: a rank's block is after those of the ranks before it.
            expected, own = np.repeat([0.5, 1.5, 2.5], counts), slice(sum(counts[:me]), sum(counts[: me + 1]))
            out[:] = -1
            out[own] = me + 0.5
            assert shouter.allgather(None, out, counts=counts) is out
            np.testing.assert_array_equal(out, expected)
            out[:] = -1
            out[own] = me + 0.5
            shouter.gather(None if me == 2 else out[own], out if me == 2 else None, 2, counts=counts if me == 2 else [])
            np.testing.assert_array_equal(out[own] if me != 2 else out, expected[own] if me != 2 else expected)
            each = np.arange(sum(counts)) + float(me)
            assert shouter.reducescatter(each, counts=counts) is each
            np.testing.assert_array_equal(each[own], (np.arange(sum(counts)) * n + sum(range(n)))[own])
            each = np.arange(float(sum(counts)))
            shouter.scatter(each if me == 0 else None, None if me == 0 else mine, counts=counts if me == 0 else [])
            np.testing.assert_array_equal(each[own] if me == 0 else mine, np.arange(sum(counts))[own])
            given, taken = [me] * n, list(range(n))
            out = np.empty(sum(taken))
            shouter.alltoall(np.full(sum(given), me), out.view(np.int64), given=given, taken=taken)
            np.testing.assert_array_equal(out.view(np.int64), np.repeat(range(n), taken))

        shouter.barrier()
        shouter.close()
        assert not shouter.is_initialized()
        """,
    )


def test_types_and_arrays(job: Job) -> None:
    job(
        2,
        """
        import array, ctypes
        g = shouter.init()
        me = g.rank
        for name in "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64 complex128".split():
            x = np.array([[1, 2], [3, 4 + me]], name)
            g.allreduce(x)
            np.testing.assert_array_equal(x, np.array([[2, 4], [6, 9]], name))
        x = np.array([True, me == 0])
        g.allreduce(x, "land")
        assert x.tolist() == [True, False]
        # 1.5 and 2 as bfloat16, whose upper bits they share with float32.
        x = (np.array([1.5, 2], np.float32).view(np.uint32) >> 16).astype(np.uint16)
        g.allreduce(x, dtype="bfloat16")
        assert ((x.astype(np.uint32) << 16).view(np.float32) == [3, 4]).all()
        # Other owners of memory, without a copy.
        x = array.array("d", [me, 1]); g.allreduce(x); assert x.tolist() == [1, 2]
        x = (ctypes.c_int * 2)(me, 1); g.allreduce(x); assert list(x) == [1, 2]
        x = bytearray([me, 1]); g.allreduce(x); assert list(x) == [1, 2]
        x = memoryview(bytearray(8)).cast("i"); x[1] = me; g.allreduce(x, "max"); assert x.tolist() == [0, 1]
        got = np.empty(4, np.uint8); g.allgather(bytes([me, 7]), got); assert got.tolist() == [0, 7, 1, 7]
        # Lent by DLPack, with and without its versions.
        class Lender:
            def __init__(self, array, versions): self.array, self.versions = array, versions
            def __dlpack_device__(self): return self.array.__dlpack_device__()
            def __dlpack__(self, **asked):
                if asked and not self.versions: raise TypeError("unknown keyword max_version")
                return self.array.__dlpack__(**asked)
        for versions in (True, False):
            x = np.array([[1.0, me]])
            g.allreduce(Lender(x, versions)); assert (x == [[2, 1]]).all()
            try:
                g.allreduce(Lender(np.ones((4, 4)).T[:2], versions)); assert False
            except ArgumentError as why:
                assert "contiguous" in str(why)
        fixed = np.ones(2); fixed.flags.writeable = False
        try:
            g.allreduce(Lender(fixed, True)); assert False
        except ArgumentError as why:
            assert "read-only" in str(why)
        # No elements, and a single number.
        g.allreduce(np.empty(0)); g.allreduce(np.empty((0, 3), np.int8))
        x = np.array(3.0); g.allreduce(x); assert x == 6
        # Memory that the host's ranks share.
        x = g.empty((3, 50_000), "float32")
        assert (x == 0).all() and x.shape == (3, 50_000)
        x += me
        g.allreduce(x, "avg"); assert (x == 0.5).all()
        assert g.stats()["in_place"] >= 1
        part = x[1]; del x
        g.allreduce(part); assert (part == 1).all()
        assert g.empty(0).shape == (0,) and g.empty(np.int64(3)).shape == (3,)
        assert g.empty(np.array([2, 3])).shape == (2, 3)
        shouter.close()
        assert (part == 1).all()  # It outlives the group.
        """,
    )


def test_messages_groups_and_registered_tensors(job: Job) -> None:
    job(
        3,
        """
        import gc
        g = shouter.init(heartbeat_timeout="20s")
        me, n = g.rank, g.size
        right, left = (me + 1) % n, (me - 1) % n
        for length in (1, 100_000):
            x, y = np.full(length, me, np.int64), np.empty(length, np.int64)
            status = g.sendrecv(x, right, y, left, tag=7)
            assert status == (left, 7, length) and (y == left).all(), status
        if me == 0:
            seen = {g.recv(y, tag=0).source for _ in range(n - 1)}
            assert seen == {1, 2}
            assert g.recv(y, 1, tag=9) == (1, 9, 2)
        else:
            g.send(x, 0, synchronous=True)
            if me == 1:
                g.send(x[:2], 0, 9)

        # Started: messages, and collectives with a count for each rank.
        works = [g.recv_async(np.empty(5), left, 3), g.send_async(np.full(4, me / 2), right, 3)]
        assert works[1].wait() is None and works[0].wait() == (left, 3, 4)
        counts = [2, 0, 5]
        into = np.empty(7, np.int64)
        work = g.allgather_async(np.full(counts[me], me), into, counts=counts)
        assert work.wait() is into and into.tolist() == [0, 0, 2, 2, 2, 2, 2]
        taken = list(range(n))
        into = np.empty(sum(taken), np.int64)
        g.alltoall_async(np.full(me * n, me), into, given=[me] * n, taken=taken).wait()
        assert into.tolist() == [1, 2, 2]
        try:
            given = [1, 2, 1] if me == 0 else [1, 1, 1]
            g.alltoall(np.ones(sum(given)), np.empty(3), given=given, taken=[1, 1, 1]); assert False
        except Mismatch as why:
            assert why.operation == "all_to_all_v", vars(why)  # The group goes on.

        half = g.split(0 if me < 2 else None, key=-me)
        assert (half is None) == (me == 2)
        if half:
            assert half.size == 2 and half.rank == 1 - me and half.job_rank(0) == 1
            x = np.array([me]); half.allreduce(x); assert x == 1
            half.close(); half.close()
            try:
                half.barrier()
                assert False
            except Closed as why:
                assert "closed by this process" in str(why)
        pair = g.group([2, 0]) if me != 1 else None
        if pair:
            assert pair.rank == {2: 0, 0: 1}[me]
            pair.barrier()
        del pair; gc.collect()

        first = [shouter.Tensor("a", 4), shouter.Tensor("b", 2, "int64", kind="allgather")]
        ids = g.register([*first, shouter.Tensor("c", 5, kind="broadcast", root=1)])
        for step in range(3):
            g.set_step(step)
            a, b, into = np.full(4, me, np.float32), np.full(2, me), np.empty((n, 2), np.int64)
            works = [g.push(ids[1], b, out=into), g.push(ids[0], a)]
            assert works[1].wait() is a and works[0].wait() is into
            assert (a == 3).all() and (into.T == range(n)).all()
            c, d = np.full((2, 5), me, np.float32)
            assert g.push(ids[2], c).wait() is c and g.push(ids[2], None, out=d).wait() is d
            assert (c == 1).all() and (d == 1).all()
        given, taken = [me] * n, list(range(n))  # Rank r gives r elements to each.
        specs = [
            shouter.Tensor("shards", dtype="int64", kind="allgather", counts=[2, 0, 5]),
            shouter.Tensor("all", dtype="int64", kind="gather", root=1, counts=[2, 0, 5]),
            shouter.Tensor("parts", dtype="int64", kind="scatter", root=2, counts=[2, 0, 5]),
            shouter.Tensor("sums", dtype="int64", kind="reducescatter", counts=[2, 0, 5]),
            shouter.Tensor("tokens", dtype="int64", kind="alltoall", given=given, taken=taken),
            shouter.Tensor("swap", dtype="int64", kind="alltoall", given=[1] * n, taken=[1] * n),
        ]
        try:
            g.register([specs[4]._replace(given=[me + (me == 0)] * n)]); assert False
        except Mismatch as why:
            assert "sends 1 elements" in str(why) and why.tensor == "tokens", vars(why)
        try:
            g.register([specs[0]._replace(counts=[2, 0, 5 + (me == 0)])]); assert False
        except Mismatch as why:
            assert "6 of rank 2" in str(why), vars(why)
        counted = g.register(specs)
        for step in range(3):
            mine = np.full([2, 0, 5][me], me + step)
            shards, everybodys = np.empty(7, np.int64), np.empty(7, np.int64)
            whole, part = np.arange(7) + step, np.empty_like(mine)
            sums, tokens, swapped = np.empty_like(mine), np.empty(3, np.int64), np.arange(n) * 10 + me
            works = [
                g.push(counted[0], mine, out=shards),
                g.push(counted[1], mine, out=everybodys if me == 1 else None),
                g.push(counted[2], whole if me == 2 else None, out=part),
                g.push(counted[3], whole, out=sums),
                g.push(counted[4], np.full(me * n, me + step), out=tokens),
                g.push(counted[5], swapped),
            ]
            for work in works:
                work.wait()
            right = [step, step] + [2 + step] * 5
            assert shards.tolist() == right and (me != 1 or everybodys.tolist() == right)
            own = [[0, 1], [], [2, 3, 4, 5, 6]][me]
            assert part.tolist() == [x + step for x in own] and sums.tolist() == [3 * (x + step) for x in own]
            assert tokens.tolist() == [1 + step, 2 + step, 2 + step]
            assert swapped.tolist() == [10 * me + other for other in range(n)]
        refused = [
            lambda: g.push(counted[0], np.ones(9, np.int64), out=shards),
            lambda: g.push(counted[4], np.ones(1, np.int64), out=tokens),
            lambda: g.register([specs[0]._replace(counts=[1, 2])]),
            lambda: g.register([specs[0]._replace(kind="broadcast")]),
            lambda: g.register([specs[0]._replace(given=[1, 2, 3])]),
            lambda: g.register([specs[0]._replace(elements=7)]),
        ]
        for wrong in (lambda: g.push(99, a), lambda: g.push(ids[0], a[:2]), lambda: g.push(ids[2], c, out=d), *refused):
            try:
                wrong()
                assert False
            except ArgumentError:
                pass
        assert g.transport().startswith("shm") and g.stats()["operations"] > 3
        assert g.dump().is_file()
        shouter.close()
        """,
        SHOUTER_DUMP_FOLDER=".",
    )


def test_started(job: Job) -> None:
    job(
        2,
        """
        import asyncio, gc, threading, weakref
        g = shouter.init()
        me = g.rank
        x = np.ones(1000)
        works = [shouter.allreduce_async(x.copy(), out=np.empty(1000)) for _ in range(20)]
        for work in works:
            assert (work.wait(30) == 2).all() and work.done() and work.exception() is None
        into = np.empty((2, 3))
        assert (g.allgather_async(np.full(3, float(me)), into).wait() is into) and (into.T == [0, 1]).all()
        assert g.broadcast_async(x).wait() is x and g.barrier_async().wait() is None

        # A handle that is not kept: the array stays until the operation has ended.
        class Owned(np.ndarray):
            pass
        kept = np.ones(200_000).view(Owned)
        gone = weakref.ref(kept)
        if me == 0:
            g.allreduce_async(kept)
            del kept; gc.collect()
            assert gone() is not None
            g.send(np.zeros(1), 1)
        else:
            g.recv(np.zeros(1), 0)
            g.allreduce_async(kept).wait(); assert (kept == 2).all(); del kept
        g.barrier(); g.barrier(); gc.collect()
        assert gone() is None

        # Callbacks, and a callback that raises.
        called = threading.Event()
        work = g.allreduce_async(np.ones(3))
        work.add_done_callback(lambda w: called.set() if w is work else None)
        assert called.wait(30) and work.done()
        said = []
        def closes(work):
            try:
                g.close()
            except ArgumentError as why:
                said.append(str(why))
            called.set()
        called.clear(); g.barrier_async().add_done_callback(closes)
        assert called.wait(30) and "callbacks" in said[0] and not g.closed, said

        async def both():
            first, second = g.allreduce_async(np.ones(3)), g.allreduce_async(np.ones(200_000))
            a, b = await asyncio.gather(wrap(first), wrap(second))
            assert (a == 2).all() and (b == 2).all()
        async def wrap(work):
            return await work
        asyncio.run(both())

        # Threads in two groups at once.
        groups = [g, g.group([0, 1])]
        def many(group, factor):
            for i in range(100):
                x = np.full(500, i * factor); group.allreduce(x); assert (x == 2 * i * factor).all()
        errors = []
        def guarded(*args):
            try:
                many(*args)
            except BaseException as why:
                errors.append(why)
        threads = [threading.Thread(target=guarded, args=(group, at + 1)) for at, group in enumerate(groups)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert not errors, errors
        groups[1].close()

        # A wait that is too short does not end the operation.
        if me == 0:
            work = g.allreduce_async(np.ones(3))
            try:
                work.wait(0.01); assert False
            except Timeout as why:
                assert (why.after, why.operation, why.step) == (0.01, "all_reduce", 0) and not work.done()
                assert "all-reduce sum of 3 x f64 has not completed" in str(why), why
            g.send(np.zeros(1), 1)
        else:
            g.recv(np.zeros(1), 0)
            work = g.allreduce_async(np.ones(3))
        assert (work.wait() == 2).all()
        shouter.close()
        """,
    )
