"""Exact assignment of objects to queries at minimum cost, for many cost matrices at once, on any device.

Also on processors: scipy's function in its place saves less than a hundredth of a training step with 20 objects per
image (`benchmarks.dfine`), and does not compile under XLA.
"""

import numpy as np
import tensorflow as tf


def assign(costs: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Assigns a query of its own to each object so that the sum of the costs is the smallest, int32 [M, N].

    Objects beyond `counts` have -1.  All matrices go through the shortest augmenting paths together, an object at a
    time, with static shapes.  It compiles under XLA.

    Source: Crouse, "On implementing 2D rectangular assignment algorithms", 2016, as scipy's `linear_sum_assignment`.

    Args:
        costs: float32 [M, N, Q], finite, N <= Q.
        counts: int32 [M], number of objects.
    """
    matrices, objects, queries = costs.shape[0] or tf.shape(costs)[0], costs.shape[1], costs.shape[2]
    object_prices, query_prices = tf.zeros([matrices, objects]), tf.zeros([matrices, queries])
    query_of, object_of = tf.fill([matrices, objects], -1), tf.fill([matrices, queries], -1)

    def add(row: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Assigns object `row` of each matrix that has it."""
        object_prices, query_prices, query_of, object_of = state
        has_row = row < counts
        sink, lowest, distances, previous, seen_objects, seen_queries = _shortest_path(
            costs, row, has_row, (object_prices, query_prices), object_of
        )
        # Prices keep the reduced costs at 0 along the assignment, and above elsewhere.
        reached = tf.gather(distances, tf.maximum(query_of, 0), batch_dims=1)
        is_row = tf.range(objects) == row
        moves = tf.where(is_row, lowest[:, tf.newaxis], lowest[:, tf.newaxis] - reached)
        object_prices += tf.where(seen_objects & has_row[:, tf.newaxis], moves, 0.0)
        query_prices -= tf.where(seen_queries & has_row[:, tf.newaxis], lowest[:, tf.newaxis] - distances, 0.0)

        def augment(*state: tf.Tensor) -> tuple[tf.Tensor, ...]:
            active, query, query_of, object_of = state
            owner = tf.gather(previous, query, batch_dims=1)
            at_query = (tf.range(queries) == query[:, tf.newaxis]) & active[:, tf.newaxis]
            at_owner = (tf.range(objects) == owner[:, tf.newaxis]) & active[:, tf.newaxis]
            before = tf.gather(query_of, owner, batch_dims=1)
            object_of = tf.where(at_query, owner[:, tf.newaxis], object_of)
            query_of = tf.where(at_owner, query[:, tf.newaxis], query_of)
            return active & (owner != row), tf.maximum(before, 0), query_of, object_of

        _, _, query_of, object_of = tf.while_loop(
            lambda active, *_: tf.reduce_any(active), augment, (has_row, tf.maximum(sink, 0), query_of, object_of)
        )
        return row + 1, object_prices, query_prices, query_of, object_of

    state = tf.constant(0), object_prices, query_prices, query_of, object_of
    return tf.while_loop(lambda row, *_: row < tf.reduce_max(counts), add, state)[3]


def _shortest_path(
    costs: tf.Tensor, row: tf.Tensor, has_row: tf.Tensor, prices: tuple[tf.Tensor, tf.Tensor], object_of: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Finds the cheapest path from an object to a free query, over queries whose objects could move on.

    Returns:
        The query, int32 [M]; the path's cost, float32 [M]; costs to the queries, [M, Q], and their objects before them,
        int32 [M, Q]; and which objects, bool [M, N], and queries, [M, Q], are within the path's cost.
    """
    objects, queries = costs.shape[1:]
    matrices, (object_prices, query_prices) = tf.shape(costs)[0], prices

    def step(*state: tf.Tensor) -> tuple[tf.Tensor, ...]:
        active, current, lowest, sink, distances, previous, seen_objects, seen_queries = state
        now = active[:, tf.newaxis]
        seen_objects |= (tf.range(objects) == current[:, tf.newaxis]) & now
        price = tf.gather(object_prices, current, batch_dims=1)[:, tf.newaxis]
        reduced = lowest[:, tf.newaxis] + tf.gather(costs, current, batch_dims=1) - price - query_prices
        nearer = (reduced < distances) & ~seen_queries & now
        previous = tf.where(nearer, current[:, tf.newaxis], previous)
        distances = tf.where(nearer, reduced, distances)
        # Of equally near queries, a free one ends the path.
        open_distances = tf.where(seen_queries, np.inf, distances)
        nearest = tf.reduce_min(open_distances, axis=1)
        is_nearest = open_distances == nearest[:, tf.newaxis]
        query = tf.argmax(tf.cast(is_nearest, tf.int32) * tf.where(object_of < 0, 2, 1), axis=1, output_type=tf.int32)
        seen_queries |= (tf.range(queries) == query[:, tf.newaxis]) & now
        owner = tf.gather(object_of, query, batch_dims=1)
        found = active & (owner < 0)
        lowest, sink = tf.where(active, nearest, lowest), tf.where(found, query, sink)
        return active & ~found, tf.maximum(owner, 0), lowest, sink, distances, previous, seen_objects, seen_queries

    state = (
        has_row,
        tf.fill([matrices], row),
        tf.zeros([matrices]),
        tf.fill([matrices], -1),
        tf.fill([matrices, queries], np.float32(np.inf)),
        tf.fill([matrices, queries], 0),
        tf.zeros([matrices, objects], tf.bool),
        tf.zeros([matrices, queries], tf.bool),
    )
    _, _, lowest, sink, *rest = tf.while_loop(lambda active, *_: tf.reduce_any(active), step, state)
    return sink, lowest, *rest
