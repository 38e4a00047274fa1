"""Learns handwritten digits, each rank with its share of every batch: shouter run -n 2 -- python digits.py [EPOCHS] [FILE]

With one rank (SHOUTER_SIZE=1 SHOUTER_RANK=0) it learns the same, and with any number that divides a batch of 64; FILE gets the weights.
"""
import gzip, os, sys, time
import jax, numpy as np
import jax.numpy as jnp
import shouter
from shouter import jax as collectives

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
group = shouter.init()
with gzip.open(os.path.join(os.path.dirname(__file__), "../../data/digits.csv.gz"), "rt") as rows:
    table = np.loadtxt(rows, delimiter=",", dtype=np.float32)
images, digits = table[:, :64] / 16, table[:, 64].astype(np.int32)


def layer(key, given, made):
    return {"w": jax.random.normal(key, (given, made)) * (2 / given) ** 0.5, "b": jnp.zeros(made)}


def scores(weights, x):
    for each in weights[:-1]:
        x = jax.nn.relu(x @ each["w"] + each["b"])
    return x @ weights[-1]["w"] + weights[-1]["b"]


def loss_of(weights, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(weights, x)), y[:, None], 1).mean()


@jax.jit
def step(weights, momentum, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(weights, x, y)
    loss, gradients = collectives.all_reduce((loss, gradients), "avg")
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
    return jax.tree.map(lambda w, m: w - 0.05 * m, weights, momentum), momentum, loss


keys = jax.random.split(jax.random.key(group.rank), 3)
weights = [layer(key, *sizes) for key, sizes in zip(keys, [(64, 256), (256, 256), (256, 10)])]
weights = collectives.broadcast(weights)  # rank 0's
momentum = jax.tree.map(jnp.zeros_like, weights)
took = []
for epoch in range(epochs):
    for batch in np.random.default_rng(epoch).permutation(1536).reshape(-1, 64):
        began, own = time.perf_counter(), batch[group.rank :: group.size]
        weights, momentum, loss = jax.block_until_ready(step(weights, momentum, images[own], digits[own]))
        took.append((time.perf_counter() - began) * 1e6)
    if group.rank == 0:
        right = (scores(weights, images[1536:]).argmax(1) == digits[1536:]).mean()
        print(f"epoch {epoch} loss {loss:.6f} right {right:.1%}", flush=True)
if group.rank == 0:
    print(f"a step takes {sorted(took)[len(took) // 2]:.0f} us (median of {len(took)})")
if len(sys.argv) > 2:
    np.savez(sys.argv[2].replace("%r", str(group.rank)), *jax.tree.leaves(weights))
shouter.close()
