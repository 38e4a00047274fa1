"""Learns handwritten digits with DistributedDataParallel: torchrun --nproc-per-node 2 digits.py [gloo|shouter] [EPOCHS] [FILE]

Rank 0 writes the trained parameters to FILE.
"""
import gzip, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

backend = sys.argv[1] if len(sys.argv) > 1 else "shouter"
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 10
if backend == "shouter":
    import shouter.torch  # the line that makes dist know the name
torch.set_num_threads(1)
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
with gzip.open(os.path.join(os.path.dirname(__file__), "../../data/digits.csv.gz"), "rt") as rows:
    table = torch.tensor([[float(cell) for cell in row.split(",")] for row in rows])
images, digits = table[:, :64] / 16, table[:, 64].long()
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
took = []
for epoch in range(epochs):
    for batch in torch.randperm(1536, generator=torch.Generator().manual_seed(epoch)).split(64):
        began, own = time.perf_counter(), batch[rank::size]
        loss = nn.functional.cross_entropy(model(images[own]), digits[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.append((time.perf_counter() - began) * 1e6)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        right = (net(images[1536:]).argmax(1) == digits[1536:]).float().mean()
        print(f"epoch {epoch} loss {mean.item() / size:.6f} right {right:.1%}", flush=True)
if rank == 0:
    if len(sys.argv) > 3:
        torch.save(net.state_dict(), sys.argv[3])
    print(f"{backend}: a step takes {sorted(took)[len(took) // 2]:.0f} us (median of {len(took)})")
dist.destroy_process_group()
