"""Callbacks of Keras 3 by Horovod's names."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras

from .... import tensorflow as st
from ....errors import ArgumentError
from ..._absent import only_cpus
from ..._job import ProcessSet, global_process_set, rank, size
from .._operations import group_of


class BroadcastGlobalVariablesCallback(st.BroadcastGlobalVariables):
    """Gives the weights, but for `local_variables`, and the optimizer's state of `root_rank` to all ranks when training begins. A device other than a CPU is
    refused.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None, *, process_set: ProcessSet = global_process_set) -> None:
        only_cpus("BroadcastGlobalVariablesCallback", device=device)
        super().__init__(root_rank, group=group_of(process_set))
        # One variable can be iterated over, too.
        self._own = [local_variables] if hasattr(local_variables, "assign") else list(local_variables or ())

    def _weights(self) -> list[Any]:
        # Keras's variables, or TensorFlow's in them.
        return [each for each in super()._weights() if not any(own is each or own is each.value for own in self._own)]


class MetricAverageCallback(st.MetricAverage):
    """Replaces the metrics of an epoch by their mean over all ranks; put it before callbacks that read them. A device other than a CPU is refused."""

    def __init__(self, device: str = "", *, process_set: ProcessSet = global_process_set) -> None:
        only_cpus("MetricAverageCallback", device=device)
        super().__init__(group=group_of(process_set))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the learning rate `initial_lr` by `multiplier`, a function of the epoch, from `start_epoch` until before `end_epoch`: at the beginning of each
    epoch with `staircase`, else of each batch, with an epoch that has a fraction, of `steps_per_epoch` batches. A number is raised to the power of the epochs since
    `start_epoch`, as in Horovod. The momentum stays as it is, for Keras 3 has it as a constant: an optimizer that has one is warned of, unless `momentum_correction` is False.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self._rate, self._start, self._end, self._staircase = initial_lr, start_epoch, end_epoch, staircase
        self._multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self._corrects = momentum_correction
        self._steps, self._epoch = steps_per_epoch, 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self._corrects and getattr(self.model.optimizer, "momentum", 0):
            text = "momentum_correction is not supported, and the momentum stays as it is: Keras 3 has it as a constant; give momentum_correction=False"
            warnings.warn(f"{type(self).__name__}: {text}", stacklevel=2)
        if not self._staircase and self._steps is None:
            self._steps = self.params.get("steps")
            if self._steps is None:
                raise ArgumentError(f"{type(self).__name__}: the number of batches of an epoch is not known; give steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._staircase:
            self._adjust(self._epoch + batch / self._steps)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _adjust(self, epoch: float) -> None:
        if epoch >= self._start and (self._end is None or epoch < self._end):
            self.model.optimizer.learning_rate = self._rate * self._multiplier(epoch)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size` to `initial_lr`, batch by batch, in the first `warmup_epochs`; with `verbose`, rank 0 says when it is there."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            # The last batch before the end has the whole rate.
            done = min(1.0, (epoch + 1 / self._steps) / warmup_epochs)
            return (1 + done * (size() - 1)) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self._verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self._verbose and rank() == 0 and epoch + 1 == self._end:
            reached = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {reached:g}.")
