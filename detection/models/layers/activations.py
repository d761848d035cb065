"""The activations that the networks use, by name."""

import tensorflow as tf


def activate(inputs: tf.Tensor, name: str) -> tf.Tensor:
    """Applies the activation called `name`: swish, relu6 or relu."""
    if name == "swish":
        return tf.nn.silu(inputs)
    if name == "relu6":
        return tf.nn.relu6(inputs)
    return tf.nn.relu(inputs)
