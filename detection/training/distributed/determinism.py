"""Op determinism: only operations that give the same bits every time, for the while that it is needed."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

# There is no public way to ask, or to switch it off.
from tensorflow.python.framework import config


def is_op_deterministic() -> bool:
    """Whether this process allows only operations that give the same bits every time."""
    return bool(config.is_op_determinism_enabled())


@contextlib.contextmanager
def op_determinism(*, needed: bool) -> Iterator[None]:
    """Switches op determinism on for the block where it is needed, and afterwards off where it was off."""
    before = is_op_deterministic()
    if needed:
        tf.config.experimental.enable_op_determinism()
    try:
        yield
    finally:
        if not before:
            config.disable_op_determinism()
