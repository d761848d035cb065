"""Copies of a detector on several devices that share batches."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tensorflow as tf

from detection.models.detector import Detector

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_device_of(detector: Detector, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs `function` on the device of the detector's variables."""
    device = detector.variables[0].value.device

    def call(*arguments: Any, **options: Any) -> Any:
        with tf.device(device):
            return function(*arguments, **options)

    return call


def copy_weights(detector: Detector, copies: Sequence[Detector]) -> None:
    """Sets the variables of equal detectors to those of `detector`."""
    for copy in copies:
        for variable, source in zip(copy.variables, detector.variables, strict=True):
            variable.assign(source.value)


def map_in_turn(functions: Sequence[Callable[[Item], Result]], items: Iterable[Item]) -> Iterator[Result]:
    """Applies functions to items in turn, each function to every n-th item; n run at the same time.

    Args:
        functions: n equivalent functions, one per device; a single one runs in this thread.
        items: arguments, read n at a time.

    Yields:
        The results, in the order of the items.
    """
    if len(functions) == 1:
        yield from map(functions[0], items)
        return
    remaining = iter(items)
    with ThreadPoolExecutor(len(functions)) as pool:
        while group := list(itertools.islice(remaining, len(functions))):
            calls = [pool.submit(function, item) for function, item in zip(functions, group, strict=False)]
            yield from (call.result() for call in calls)
