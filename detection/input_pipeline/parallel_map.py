"""Parallel calls of a function over a data set, without TensorFlow's autotuning."""

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def parallel_map(data: tf.data.Dataset, function: Callable[..., Any]) -> tf.data.Dataset:
    """Applies a function to the elements of a data set, in order; as many at a time as there are processor cores.

    `tf.data.AUTOTUNE` would find this number.  But an iterator with autotuning often waits, at its end, for the next
    round of the tuning, which is up to a minute away: `Model::OptimizeLoop` of TensorFlow 2.16 is notified before its
    `CancellationManager` says that it is cancelled.

    Args:
        data: the data set.
        function: has no Python control flow on tensors, as AutoGraph does not convert it.

    Returns:
        A data set whose iterators do not tune.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    cores = len(os.sched_getaffinity(0))
    mapped = data.map(tf.autograph.experimental.do_not_convert(function), num_parallel_calls=cores)
    return mapped.with_options(options)
