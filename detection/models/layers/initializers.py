"""Initializers of random weights with seeds from one generator; all detectors use them."""

import contextlib
import random
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras

_seeds: ContextVar[random.Random | None] = ContextVar("seeds", default=None)


@contextlib.contextmanager
def seeded_initializers(seed: int) -> Iterator[None]:
    """Makes the initial weights of networks built in this context and thread depend on `seed` alone.

    `keras.utils.set_random_seed` is not enough: Keras' initializers take their seeds from Python's
    global generator, which other threads use, too.  Cloud Storage's client draws a number for each
    upload and each retry, and the thread that renews a lease uploads every ten seconds.

    Outside of the context, weights depend on the global generator, as in Keras.
    """
    token = _seeds.set(random.Random(seed))
    try:
        yield
    finally:
        _seeds.reset(token)


def _seed() -> int:
    # The same draw as in Keras' `make_default_seed`: a seeded global generator gives Keras' weights.
    return (_seeds.get() or random).randint(1, 10**9)


# An initializer returns the same values in every call, so each kernel needs a separate one.


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


def fan_in_uniform(fan_in: int | None = None) -> Any:
    """Returns PyTorch's default initializer, of a uniform distribution up to 1 / sqrt(fan_in).

    Args:
        fan_in: inputs of an output, for a bias; None: those of the kernel itself.
    """
    if fan_in is None:
        return keras.initializers.VarianceScaling(1.0 / 3.0, mode="fan_in", distribution="uniform", seed=_seed())
    return uniform(fan_in**-0.5)


def uniform(limit: float) -> Any:
    """Returns an initializer of a uniform distribution from -limit to limit."""
    return keras.initializers.RandomUniform(-limit, limit, seed=_seed())
