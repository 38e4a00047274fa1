"""Sums of `tf.IndexedSlices`, as embeddings have for gradients: the rows of all ranks are gathered, and those of one index added.

Each rank adds its own rows of one index first. The sums are made in the order of the ranks: the same bits everywhere. Where the rows of all are
more than a dense tensor would move, dense ones are reduced; rows whose sum is zero are left out then.
"""

from __future__ import annotations

import tensorflow as tf

from .. import _core
from ..errors import ArgumentError
from . import _calls

# Sums of these are made in float32, as in the library.
_SMALL = (tf.float16, tf.bfloat16)


def all_reduce(x: tf.IndexedSlices, op: str, at: _calls.Place, named: _calls.Naming) -> tf.IndexedSlices:
    """The sum or mean of all ranks' slices, each index once, in ascending order."""
    with _calls.arguments(at.group, _calls.rows_name(named)):
        if op not in ("sum", "avg"):
            raise ArgumentError(f"'{named.name}': {op} of tf.IndexedSlices; there are sum and avg only: convert it by tf.convert_to_tensor")
        _core.check_type(x.dtype.name, op)
        if op == "avg" and not (x.dtype.is_floating or x.dtype.is_complex):
            raise ArgumentError(f"'{named.name}': the mean of tf.IndexedSlices of {x.dtype.name}; take the sum")
    are_below = True if x.dense_shape is None else tf.reduce_all(x.indices < tf.cast(x.dense_shape[0], x.indices.dtype))
    are_alike = tf.equal(tf.shape(x.indices)[0], tf.shape(x.values)[0])
    right = are_alike & are_below & tf.reduce_all(x.indices >= 0)
    nothing = x.indices[:0], x.values[:0]
    indices, values = tf.cond(right, lambda: _merged(x.indices, x.values), lambda: nothing)
    # A rank whose slices are wrong tells the others so: all have an error at once.
    own = tf.where(right, tf.shape(indices, tf.int64), -1)
    rows = _calls.bind("all_gather", own, at, _calls.Naming(_calls.rows_name(named), False))
    with tf.control_dependencies([rows]):
        checks = [
            tf.debugging.assert_non_negative(x.indices, f"'{named.name}': an index of tf.IndexedSlices is below 0"),
            tf.debugging.Assert(are_alike, [f"'{named.name}': as many indices as rows"]),
            tf.debugging.Assert(are_below, [f"'{named.name}': an index of tf.IndexedSlices is beyond its rows"]),
        ]
    with tf.control_dependencies([check for check in checks if check is not None]):
        rows = tf.identity(rows)

    def gathered() -> tuple[tf.Tensor, tf.Tensor]:
        of_all = _calls.bind("all_gather_v", indices, at, _calls.Naming(f"{named.name}/indices", False), rows)
        every = _calls.bind("all_gather_v", values, at, _calls.Naming(f"{named.name}/values", False), rows)
        return _merged(of_all, every)

    if x.dense_shape is None:
        every, sums = gathered()
    else:
        length = tf.cast(x.dense_shape[0], tf.int64)

        def reduced() -> tuple[tf.Tensor, tf.Tensor]:
            dense = tf.math.unsorted_segment_sum(values, indices, length)
            sums = _calls.all_reduce(dense, at.group, _calls.Naming(f"{named.name}/dense", False), "sum")
            every = tf.reshape(tf.where(tf.reduce_any(sums != 0, tf.range(1, tf.rank(sums)))), [-1])
            return tf.cast(every, indices.dtype), tf.gather(sums, every)

        row = tf.reduce_prod(tf.shape(values, tf.int64)[1:]) * values.dtype.size
        # A dense all-reduce moves a tensor twice. All ranks know the rows of all, so they decide alike.
        moves_less = (2 * length * row < tf.reduce_sum(rows) * (indices.dtype.size + row)) & tf.reduce_all(rows >= 0)
        every, sums = tf.cond(moves_less, reduced, gathered)
    if op == "avg":
        sums /= tf.cast(at.size, sums.dtype)
    return tf.IndexedSlices(sums, every, x.dense_shape)


def _merged(indices: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each index once, in ascending order, with the sum of its rows, which are added in their order."""
    order = tf.argsort(indices, stable=True)
    indices = tf.gather(indices, order)
    every, places = tf.unique(indices)
    rows = tf.gather(values, order)
    if values.dtype in _SMALL:
        rows = tf.cast(rows, tf.float32)
    return every, tf.cast(tf.math.segment_sum(rows, places), values.dtype)
