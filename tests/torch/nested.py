"""A rank of a torchrun that a rank of `shouter run` has started: it is torchrun's, for PyTorch and for `shouter.init`.

    shouter run -n 2 -- torchrun --standalone --nproc-per-node 2 tests/torch/nested.py

Each rank prints a line.
"""

import os
import socket

import torch
import torch.distributed as dist

import shouter
import shouter.torch

dist.init_process_group("shouter")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ones = torch.ones(4)
dist.all_reduce(ones)
assert (ones[0].item(), dist.get_rank(), dist.get_world_size()) == (size, rank, size), ones
with socket.create_server(("127.0.0.1", 0)) as free:
    # The port above torchrun's may be taken.
    port = [free.getsockname()[1]]
    dist.broadcast_object_list(port, 0)
dist.barrier()
dist.destroy_process_group()
with shouter.init(port=port[0]) as group:
    numbers = bytearray([1])
    group.allreduce(numbers)
    assert (numbers[0], group.rank, group.size) == (size, rank, size), numbers
    print(f"rank {group.rank} of {group.size}, {group.local_rank} of {group.local_size} on this host\n", end="", flush=True)
