"""Arrays in memory of a GPU, on a simulated CUDA driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Job

SIMULATED = Path(__file__).parents[3] / "target" / "cuda-sim"


@pytest.mark.skipif(not (SIMULATED / "libcuda.so.1").exists(), reason="the simulated CUDA driver is not built")
def test_cuda_arrays(job: Job) -> None:
    job(
        2,
        """
        import ctypes, gc
        cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        assert cuda.cuInit(0) == 0
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
        class Device:
            def __init__(self, array, strides=None):
                self.bytes = array.nbytes
                self.at = ctypes.c_uint64()
                assert cuda.cuMemAlloc_v2(ctypes.byref(self.at), ctypes.c_size_t(max(1, self.bytes))) == 0
                self.like = array
                assert cuda.cuMemcpyHtoD_v2(self.at, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(self.bytes)) == 0
                self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "version": 3, "strides": strides,
                                                 "data": (self.at.value, False), "stream": 1}
            def get(self):
                got = np.empty_like(self.like)
                assert cuda.cuMemcpyDtoH_v2(ctypes.c_void_p(got.ctypes.data), self.at, ctypes.c_size_t(self.bytes)) == 0
                return got
        g = shouter.init()
        me = g.rank
        for name in ("float32", "int64", "uint8", "float16"):
            x = Device(np.full((3, 1000), me + 1, name))
            assert g.allreduce(x) is x
            assert (x.get() == 3).all(), x.get()
        x, all = Device(np.full(500, float(me))), Device(np.zeros((2, 500)))
        assert g.allgather_async(x, all).wait() is all
        assert (all.get().T == [0, 1]).all()
        for wrong, says in [
            (lambda: g.allreduce(x, out=np.empty(500)), "one is in memory of a GPU"),
            (lambda: g.allreduce(Device(np.ones((4, 4)), strides=(8, 32))), "not contiguous"),
        ]:
            try:
                wrong(); assert False
            except ArgumentError as why:
                assert says in str(why), why
        # All else works on copies: counts, messages, registered tensors, groups of some ranks.
        for group in (g, g.group([1, 0])):
            rank = group.rank
            mine, all = Device(np.full(rank + 1, rank)), Device(np.zeros(3, int))
            group.allgather(mine, all, counts=[1, 2])
            assert all.get().tolist() == [0, 1, 1]
            given, taken = Device(np.full(2 * (rank + 1), rank)), Device(np.zeros(3, int))
            group.alltoall(given, taken, given=[rank + 1] * 2, taken=[1, 2])
            assert taken.get().tolist() == [0, 1, 1]
            sent, come = Device(np.arange(9000) + rank), Device(np.zeros(9000, int))
            status = group.sendrecv(sent, 1 - rank, come, source=1 - rank)
            assert status.elements == 9000 and (come.get() == np.arange(9000) + 1 - rank).all()
            sending = group.send_async(sent, rank)
            assert group.recv(come, source=rank).elements == 9000 and (come.get() == sent.get()).all()
            sending.wait()
            gathered = Device(np.zeros((2, 700)))
            tensor, = group.register([shouter.Tensor("shards", 700, "float64", kind="allgather")])
            for step in range(3):
                assert group.push(tensor, Device(np.full(700, float(rank + step))), out=gathered).wait() is gathered
                assert (gathered.get().T == [step, 1 + step]).all()
            x = Device(np.full(2000, float(rank)))
            assert group.allreduce(x) is x and (x.get() == 1).all()
        shouter.close()
        """,
        LD_LIBRARY_PATH=str(SIMULATED),
        XDG_CACHE_HOME=str(SIMULATED / "cache"),
    )
