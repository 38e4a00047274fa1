"""Learns handwritten digits with Keras, each rank with its share of every batch: shouter run -n 4 -- python digits.py [EPOCHS] [FILE]

With one rank (SHOUTER_SIZE=1 SHOUTER_RANK=0) it learns the same, and with any number that divides a batch of 64; FILE gets the weights and the
accuracy.
"""
import gzip, os, sys, time
import keras, numpy as np
import shouter
import shouter.tensorflow as st

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
group = shouter.init()
with gzip.open(os.path.join(os.path.dirname(__file__), "../../data/digits.csv.gz"), "rt") as rows:
    table = np.loadtxt(rows, delimiter=",", dtype=np.float32)
images, digits = table[:, :64] / 16, table[:, 64].astype(np.int32)

keras.utils.set_random_seed(group.rank)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Time(keras.callbacks.Callback):
    """How long a step takes, and how much of it collectives are under way, waits for late ranks included."""

    def on_train_begin(self, logs=None):
        self.took, self.reduced = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.began, self.before = time.perf_counter(), st.stats()["time_in_operations_ns"]

    def on_train_batch_end(self, batch, logs=None):
        self.took.append((time.perf_counter() - self.began) * 1e6)
        self.reduced.append((st.stats()["time_in_operations_ns"] - self.before) / 1e3)


model.compile(st.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), loss, metrics=["accuracy"])
timing, own = Time(), slice(group.rank, 1536, group.size)
# Rank 0's weights; the metrics of all ranks' samples.
callbacks = [st.BroadcastGlobalVariables(), st.MetricAverage(), timing]
model.fit(
    images[own], digits[own], batch_size=64 // group.size, epochs=epochs, shuffle=False, verbose=2 if group.rank == 0 else 0, callbacks=callbacks
)
right = float((model.predict(images[1536:], verbose=0).argmax(1) == digits[1536:]).mean())
if group.rank == 0:
    middle = lambda times: sorted(times)[len(times) // 2]
    print(f"right {right:.1%}; a step takes {middle(timing.took):.0f} us, {middle(timing.reduced):.0f} of them in synchronisation (medians of {len(timing.took)})")
if len(sys.argv) > 2:
    np.savez(sys.argv[2].replace("%r", str(group.rank)), *model.get_weights(), right=right)
shouter.close()
