"""Communication hooks for DistributedDataParallel.

    model = DistributedDataParallel(net)
    model.register_comm_hook(hooks.Bf16(error_feedback=True), hooks.bf16)
    model.register_comm_hook(hooks.Named(model), hooks.named)
"""
import torch
import torch.distributed as dist

from ._groups import core_of


class Bf16:
    """The state of the hook `bf16`, one for each DistributedDataParallel.

    process_group: the group that averages, or None for the default one.
    error_feedback: keep what rounding took from each gradient and add it to the next step's, as in Karimireddy et al.,
        "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019. Makes up for the rounding of this rank's own
        gradients, not for that of sums. Costs a copy of the gradients in their own type.
    """

    def __init__(self, process_group=None, error_feedback=False):
        self.process_group = process_group
        self.error_feedback = error_feedback
        # By bucket, in the layout of its parameters: the rounding errors. By parameter: its view of them.
        self._taken = {}
        self._of_parameter = {}

    def _taken_from(self, bucket):
        """The rounding errors of this bucket's gradients, in the bucket's layout.

        DistributedDataParallel puts parameters into other buckets after the first step: the kept errors move along.
        """
        parameters, buffer = bucket.parameters(), bucket.buffer()
        key = tuple(id(parameter) for parameter in parameters)
        taken = self._taken.get(key)
        if taken is None:
            taken = torch.zeros_like(buffer)
            for parameter, gradient in zip(key, bucket.gradients()):
                start = gradient.storage_offset() - buffer.storage_offset()
                view = taken[start : start + gradient.numel()]
                if parameter in self._of_parameter:
                    view.copy_(self._of_parameter[parameter])
                self._of_parameter[parameter] = view
            self._taken = {other: kept for other, kept in self._taken.items() if not set(other) & set(key)}
            self._taken[key] = taken
        return taken


def bf16(state: Bf16, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks with bf16 on the wire: half the bytes of float32.

    A gradient is divided by the number of ranks in its own type and rounded once before it is sent; sums are rounded to bf16
    where they are reduced. Every rank gets the same bits, in the gradients' own type.
    """
    group = state.process_group if state.process_group is not None else dist.group.WORLD
    buffer = bucket.buffer()
    buffer.div_(dist.get_world_size(group))
    if state.error_feedback:
        taken = state._taken_from(bucket)
        buffer.add_(taken)
        sent = buffer.to(torch.bfloat16)
        torch.sub(buffer, sent, out=taken)
    else:
        sent = buffer.to(torch.bfloat16)

    def widen(done):
        done.value()  # raises what the all-reduce failed with
        return buffer.copy_(sent)

    return dist.all_reduce(sent, group=group, async_op=True).get_future().then(widen)


class Named:
    """The state of the hook `named`, for one DistributedDataParallel.

    model: the DistributedDataParallel, whose parameters have names.
    process_group: the group that averages, or None for the default one.
    """

    def __init__(self, model, process_group=None):
        self.process_group = process_group if process_group is not None else model.process_group
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}

    def label(self, bucket):
        """What timelines and dumps call the bucket: its number, and its first and last parameter."""
        names = [self._names.get(id(parameter), "?") for parameter in bucket.parameters()]
        return f"bucket {bucket.index()}: {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")


def named(state: Named, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket's gradients over all ranks, as without a hook, in an operation with a name: `SHOUTER_TIMELINE`, dumps and
    `shouter explain` say which parameters it is about."""
    core = core_of(state.process_group)
    if core is not None:
        core.set_label(state.label(bucket))
    try:
        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=state.process_group, async_op=True)
    finally:
        if core is not None:
            core.set_label("")
    return work.get_future().then(lambda done: done.value()[0])
