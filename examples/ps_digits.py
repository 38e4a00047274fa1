"""Learns handwritten digits with a parameter server, then with an all-reduce, and compares the parameters:

    shouter run -n 3 -- python3 examples/ps_digits.py [SERVERS] [EPOCHS]

The first SERVERS ranks (1) serve, the others train. With NumPy alone.
"""
import gzip
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

import shouter
from shouter import ps

servers = int(sys.argv[1]) if len(sys.argv) > 1 else 1
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
rate = np.float32(0.2)

group = shouter.init()
names = [f"pserver{rank}" if rank < servers else f"trainer{rank - servers}" for rank in range(group.size)]
actors = ps.Actors(group, names[group.rank])
plan = ps.Plan(servers=names[:servers], trainers=names[servers:])
same_role = group.split(group.rank < servers)


def table():
    with gzip.open(os.path.join(os.path.dirname(__file__), "../data/digits.csv.gz"), "rt") as rows:
        cells = np.array([[float(cell) for cell in row.split(",")] for row in rows], np.float32)
    return cells[:, :64] / 16, cells[:, 64].astype(int)


def start():
    random = np.random.default_rng(1)
    shapes = {"hidden": (64, 128), "hidden bias": (128,), "out": (128, 10), "out bias": (10,)}
    return {name: (random.standard_normal(shape) / np.sqrt(shape[0]) * (len(shape) > 1)).astype(np.float32) for name, shape in shapes.items()}


def forward(net, images):
    hidden = np.maximum(images @ net["hidden"] + net["hidden bias"], 0)
    return hidden, hidden @ net["out"] + net["out bias"]


def gradients(net, images, digits):
    """Of the mean cross entropy, and that."""
    hidden, scores = forward(net, images)
    scores = np.exp(scores - scores.max(1, keepdims=True))
    likely = scores / scores.sum(1, keepdims=True)
    loss = -np.log(likely[np.arange(len(digits)), digits]).mean()
    likely[np.arange(len(digits)), digits] -= 1
    likely /= np.float32(len(digits))
    back = (likely @ net["out"].T) * (hidden > 0)
    return {"hidden": images.T @ back, "hidden bias": back.sum(0), "out": hidden.T @ likely, "out bias": likely.sum(0)}, loss


def train(net, update):
    """Trains on this trainer's part of each batch; `update` changes the net by a gradient."""
    images, digits = table()
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(1536)
        for batch in order.reshape(-1, 64):
            own = batch[same_role.rank :: same_role.size]
            gradient, loss = gradients(net, images[own], digits[own])
            update(net, gradient)
        right = (forward(net, images[1536:])[1].argmax(1) == digits[1536:]).mean()
        if same_role.rank == 0:
            print(f"epoch {epoch} loss {loss:.6f} right {right:.1%}", flush=True)
    return net


def by_allreduce(net, gradient):
    for name, part in gradient.items():
        same_role.allreduce(part, "avg")
        net[name] -= rate * part


if actors.name in plan.servers:
    ps.serve(actors, plan)
else:
    with ps.Client(actors, plan) as client:
        net = start()
        if same_role.rank == 0:
            for name, value in net.items():
                client.set(name, value, ps.SGD(float(rate)))
        client.wait_for_all()

        def by_server(net, gradient):
            for name, part in gradient.items():
                client.push(name, part)
            for name in gradient:
                client.pull(name, net[name])

        served = train(net, by_server)
    reduced = train(start(), by_allreduce)
    apart = max(np.abs(served[name] - reduced[name]).max() for name in served)
    same = all((served[name].view(np.uint32) == reduced[name].view(np.uint32)).all() for name in served)
    if same_role.rank == 0:
        print(f"{servers} servers, {same_role.size} trainers: {'the same bits as' if same else f'at most {apart:.1e} from'} an all-reduce")
    assert same or servers > 1 and apart <= 1e-6
shouter.close()
