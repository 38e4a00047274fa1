"""A job that torchrun starts again: rank 1 is killed in the first attempt, the other ones name it, and the second attempt comes together.

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 tests/torch/restart.py

Each rank of the second attempt prints a line; the exit status is 0 if all went so.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

import shouter.torch

dist.init_process_group("shouter")
ones = torch.ones(4)
dist.all_reduce(ones)
assert ones[0].item() == dist.get_world_size()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if dist.get_rank() == 1:
        # The message arrives when the other rank's operation is in progress.
        dist.recv(torch.empty(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    # torchrun, too, sees that rank 1 is dead, and may end this one before it has heard of it.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work = dist.all_reduce(ones, async_op=True)
    dist.send(torch.ones(1), 1)
    try:
        work.wait()
    except shouter.torch.PeerFailed as why:
        print(f"first attempt: rank {dist.get_rank()} was told of rank {why.rank}", flush=True)
        sys.exit(1)
    sys.exit("the death of rank 1 went unnoticed")
dist.destroy_process_group()
print(f"second attempt: rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n", end="", flush=True)
