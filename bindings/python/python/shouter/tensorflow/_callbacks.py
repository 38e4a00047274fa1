"""Callbacks of Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .._group import Group
from . import _calls
from ._training import broadcast_variables


class BroadcastGlobalVariables(keras.callbacks.Callback):
    """Gives the weights and the optimizer's state of rank `root` to all ranks when training begins; of a model that is built by its first
    batch, after that.
    """

    def __init__(self, root: int = 0, *, group: Group | None = None) -> None:
        super().__init__()
        self._root, self._group, self._done = root, group, False

    def on_train_begin(self, logs: Any = None) -> None:
        self._done = False
        if self.model.built:
            self._run()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            self._run()

    def _run(self) -> None:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        broadcast_variables([*self._weights(), *optimizer.variables], self._root, group=self._group)
        self._done = True

    def _weights(self) -> list[Any]:
        return list(self.model.weights)


class MetricAverage(keras.callbacks.Callback):
    """Replaces the metrics of an epoch by their mean over all ranks; put it before callbacks that read them."""

    def __init__(self, *, group: Group | None = None) -> None:
        super().__init__()
        self._group = group

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(logs or {})
        if not names:
            return
        at = _calls.place(self._group)
        own = tf.constant([float(logs[name]) for name in names], tf.float64)
        means = _calls.all_reduce(own, at.group, _calls.Naming("metrics", False), "avg")
        logs.update(zip(names, means.numpy().tolist()))
