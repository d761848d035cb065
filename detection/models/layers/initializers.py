"""Initializers of random weights, whose seeds come from one place: kernels of all detectors take theirs from here."""

import contextlib
import random
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras

_seeds: ContextVar[random.Random | None] = ContextVar("seeds", default=None)


@contextlib.contextmanager
def seeded_initializers(seed: int) -> Iterator[None]:
    """Makes the initial weights of networks that are built inside, in this thread, depend on `seed` alone.

    `keras.utils.set_random_seed` is not enough: Keras' initializers take their seeds from Python's
    global generator, from which other threads draw, too. Cloud Storage's client draws a number with
    each upload and each retry, and the thread that renews a lease uploads every ten seconds.

    Outside, weights are those of Keras: they depend on the global generator.
    """
    token = _seeds.set(random.Random(seed))
    try:
        yield
    finally:
        _seeds.reset(token)


def _seed() -> int:
    # As Keras' `make_default_seed`, so that others who seed the global generator get the same weights.
    return (_seeds.get() or random).randint(1, 10**9)


# Each returns the same values whenever it is called: a kernel needs one of its own.


def normal(stddev: float) -> Any:
    """Returns an initializer of a normal distribution around zero."""
    return keras.initializers.RandomNormal(stddev=stddev, seed=_seed())


def glorot_uniform() -> Any:
    """Returns Keras' default initializer."""
    return keras.initializers.GlorotUniform(seed=_seed())


def he_normal() -> Any:
    """Returns He et al.'s initializer by the outputs ("Delving Deep into Rectifiers", 2015), not truncated."""
    return keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal", seed=_seed())


def lecun_normal() -> Any:
    """Returns LeCun et al.'s initializer ("Efficient BackProp", 1998), of a truncated normal distribution."""
    return keras.initializers.VarianceScaling(seed=_seed())
