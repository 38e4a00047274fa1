"""Learns handwritten digits as a script for Horovod does: python -m shouter run -n 2 digits.py [EPOCHS]"""
import gzip, os, sys
import torch
from torch import nn
import shouter.horovod.torch as hvd  # the line that changes: it was `import horovod.torch as hvd`

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
hvd.init()
torch.set_num_threads(1)
torch.manual_seed(1 + hvd.rank())
with gzip.open(os.path.join(os.path.dirname(__file__), "../../data/digits.csv.gz"), "rt") as rows:
    table = torch.tensor([[float(cell) for cell in row.split(",")] for row in rows])
images, digits = table[:, :64] / 16, table[:, 64].long()
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for epoch in range(epochs):
    for batch in torch.randperm(1536, generator=torch.Generator().manual_seed(epoch)).split(64):
        own = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[own]), digits[own])
        loss.backward()
        optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0:
        right = (model(images[1536:]).argmax(1) == digits[1536:]).float().mean()
        print(f"epoch {epoch} loss {mean.item():.6f} right {right:.1%}", flush=True)
hvd.shutdown()
