#!/usr/bin/env python3
"""Trains a small transformer whose parameters, gradients and optimizer state are sharded over the ranks (FSDP2, torch 2.x).

    torchrun --nproc-per-node 4 transformer.py [gloo|shouter] [STEPS]

It learns to repeat: the second half of each line is its first half again. Every rank draws lines of its own.
"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SYMBOLS, HALF, WIDTH, LAYERS = 16, 8, 64, 2


class Transformer(nn.Module):
    """Predicts each symbol from those before it."""

    def __init__(self):
        super().__init__()
        self.symbol, self.place = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(2 * HALF, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0, batch_first=True, norm_first=True) for _ in range(LAYERS)
        )
        self.out = nn.Linear(WIDTH, SYMBOLS)

    def forward(self, lines):
        length = lines.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.symbol(lines) + self.place(torch.arange(length))
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.out(hidden)


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "shouter"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    if backend == "shouter":
        import shouter.torch  # noqa: F401  registers the backend: the one line that differs
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(1)
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draws, took = torch.Generator().manual_seed(rank), []
    for step in range(steps):
        began = time.perf_counter()
        half = torch.randint(0, SYMBOLS, (64 // size, HALF), generator=draws)
        lines = torch.cat([half, half], 1)
        guesses = model(lines[:, :-1])
        # Only the second half can be predicted.
        loss = nn.functional.cross_entropy(guesses[:, HALF - 1 :].flatten(0, 1), lines[:, HALF:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.append((time.perf_counter() - began) * 1e6)
        if step % 20 == 19 or step == steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item() / size:.6f}", flush=True)
    if rank == 0:
        print(f"{backend}: a step takes {sorted(took)[len(took) // 2]:.0f} us (median of {len(took)})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
