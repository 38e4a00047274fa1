"""The collectives as primitives of JAX: their shapes, order, derivatives, and batches.

All have one ordered effect, so JAX chains them by a token: XLA runs them one by one, in the order of the program, also from one compiled
program to the next. Derivatives are those of the sum of all ranks' losses.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _handler

try:
    from jax._src import core, dispatch, effects
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    _SETS = (
        effects.ordered_effects,
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    )
except (ImportError, AttributeError) as why:
    raise ImportError(
        f"shouter.jax was written for JAX 0.10, and this is {jax.__version__} ({why}); install that, as by `pip install 'jax==0.10.*'`"
    ) from None


class Order(effects.Effect):
    """The order of the collectives of a program."""

    def __str__(self) -> str:
        return "shouter.jax"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Order)

    def __hash__(self) -> int:
        return hash(Order)


ORDER = Order()
for _set in _SETS:
    _set.add_type(Order)


def reset() -> None:
    """Programs that this thread runs from now on do not wait for those before, whose failure would be theirs."""
    tokens = dispatch.runtime_tokens
    tokens.current_tokens.pop(ORDER, None)
    tokens.output_runtime_tokens.clear()


def _primitive(name: str, shape: Any) -> Primitive:
    """A primitive of several arrays, each of which has a result of `shape(its shape, size)`."""
    primitive = Primitive(f"shouter_{name}")
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(dispatch.apply_primitive, primitive))

    def abstract(*arrays: Any, size: int, **_: Any) -> tuple[list[Any], set[Order]]:
        return [core.ShapedArray(shape(array.shape, size), array.dtype) for array in arrays], {ORDER}

    primitive.def_effectful_abstract_eval(abstract)
    mlir.register_lowering(primitive, _lowered, platform="cpu")
    return primitive


def _lowered(ctx: Any, *arrays: Any, kind: str, op: str, **numbers: int) -> Any:
    token = core.abstract_token
    # Where input and output are as long, XLA may give both one buffer.
    alike = kind in ("all-reduce", "broadcast")
    aliases = {at: at for at in range(1, len(arrays) + 1)} if alike else {}
    lowered = jax.ffi.ffi_lowering(_handler.TARGET, has_side_effect=True, operand_output_aliases=aliases)
    whole = ctx.replace(avals_in=[token, *ctx.avals_in], avals_out=[token, *ctx.avals_out])
    attributes = {"kind": kind, "op": op} | {name: np.int64(number) for name, number in numbers.items()}
    after, *results = lowered(whole, ctx.tokens_in.get(ORDER), *arrays, **attributes)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDER: after})))
    return results


# Of the same shape: all-reduce and broadcast.
same = _primitive("same", lambda shape, size: shape)
# From a rank's block to those of all.
gather = _primitive("gather", lambda shape, size: (size, *shape))
# From the blocks of all to a rank's.
scatter = _primitive("scatter", lambda shape, size: shape[1:])


def _jvp(primitive: Primitive, primals: Any, tangents: Any, **call: Any) -> Any:
    results = primitive.bind(*primals, **call)
    slopes = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    # Integers have none, nor has what does not depend on the variable.
    moving = [at for at, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if moving and call["op"] not in ("sum", "avg"):
        raise NotImplementedError(f"{call['kind']} by {call['op']} has no derivative here; sum and avg have one")
    if moving:
        for at, slope in zip(moving, primitive.bind(*(tangents[at] for at in moving), **call)):
            slopes[at] = slope
    return results, slopes


def _transposed(cotangents: Any, transpose: Any) -> list[Any]:
    """The transpose of those cotangents that are not zero."""
    moving = [at for at, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    results: list[Any] = [None] * len(cotangents)
    for at, result in zip(moving, transpose([cotangents[at] for at in moving]) if moving else []):
        results[at] = result
    return results


def _transposed_same(cotangents: Any, *_: Any, **call: Any) -> Any:
    def transpose(given: list[Any]) -> Any:
        if call["kind"] == "all-reduce":
            return same.bind(*given, **call)
        # What all ranks have got is the root's: their cotangents are added there.
        sums = same.bind(*given, **(call | {"kind": "all-reduce"}))
        return sums if call["rank"] == call["root"] else [jnp.zeros_like(each) for each in sums]

    return _transposed(cotangents, transpose)


def _transposed_gather(cotangents: Any, *_: Any, **call: Any) -> Any:
    return _transposed(cotangents, lambda given: scatter.bind(*given, **(call | {"kind": "reduce-scatter"})))


def _transposed_scatter(cotangents: Any, *_: Any, **call: Any) -> Any:
    def transpose(given: list[Any]) -> Any:
        blocks = gather.bind(*given, **(call | {"kind": "all-gather", "op": "sum"}))
        return blocks if call["op"] == "sum" else [each / call["size"] for each in blocks]

    return _transposed(cotangents, transpose)


for _each in (same, gather, scatter):
    ad.primitive_jvps[_each] = functools.partial(_jvp, _each)
ad.primitive_transposes[same] = _transposed_same
ad.primitive_transposes[gather] = _transposed_gather
ad.primitive_transposes[scatter] = _transposed_scatter


def _batched_same(arrays: Any, axes: Any, **call: Any) -> Any:
    return same.bind(*arrays, **call), axes


def _batched_gather(arrays: Any, axes: Any, **call: Any) -> Any:
    return gather.bind(*arrays, **call), [axis if axis is None else axis + 1 for axis in axes]


def _batched_scatter(arrays: Any, axes: Any, **call: Any) -> Any:
    # The first axis stays that of the ranks.
    moved = [array if axis is None else jnp.moveaxis(array, axis, 1) for array, axis in zip(arrays, axes)]
    return scatter.bind(*moved, **call), [axis if axis is None else 0 for axis in axes]


batching.primitive_batchers[same] = _batched_same
batching.primitive_batchers[gather] = _batched_gather
batching.primitive_batchers[scatter] = _batched_scatter
