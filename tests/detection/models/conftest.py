"""The detectors that the tests of all detectors take, by `name`; `detector` has the weights of its seed."""

import functools
from collections.abc import Iterator

import pytest

from detection.models.detector import Detector
from tests.detection.models.harness import DETECTORS, SLOW, build

_built = functools.cache(build)  # a fifth of a second each


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.extended) if name in SLOW else name for name in DETECTORS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def detector(name: str) -> Iterator[Detector]:
    detector = _built(name)
    variables = [*detector.variables, *detector.loss_statistics]
    start = [variable.numpy() for variable in variables]
    yield detector
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
