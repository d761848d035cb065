"""An update that happens on all replicas or on none."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def update_where(condition: tf.Tensor, update: Callable[..., None], *arguments: Any) -> None:
    """Calls `update(*arguments)` on every replica if `condition` holds; otherwise nothing happens.

    Args:
        condition: bool scalar, the same on all replicas.
        update: assigns to variables; it may use optimizers, but may close over
            nothing that differs by replica.
        arguments: this replica's tensors, nested.
    """
    if tf.__internal__.distribute.strategy_supports_no_merge_call():
        _call_where(condition, lambda: update(*arguments))
        return

    # Optimizers under MirroredStrategy meet across replicas, which they cannot from inside a condition of a
    # replica's own; so the condition stands outside.  Keras' LossScaleOptimizer does the same.
    def on_all_replicas(strategy: tf.distribute.Strategy, conditions: Any, values: Any) -> None:
        condition = strategy.experimental_local_results(conditions)[0]
        _call_where(condition, lambda: strategy.extended.call_for_each_replica(update, args=values))

    tf.distribute.get_replica_context().merge_call(on_all_replicas, args=(condition, arguments))


def _call_where(condition: tf.Tensor, function: Callable[[], Any]) -> None:
    def call() -> None:
        # Both branches have to return nothing.
        function()

    tf.cond(condition, call, lambda: None)
