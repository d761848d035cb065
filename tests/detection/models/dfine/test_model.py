"""The detector: parameters of the presets, detections, and that it learns."""

import numpy as np
import pytest

from detection.models.dfine.config import DFINES
from detection.models.dfine.model import DFine

# Of the authors' models with 80 classes, without the two fixed numbers of the decoder, and the row of no object.
PARAMETERS = {
    "dfine-n": 3_782_693 - 128,
    "dfine-s": 10_321_877 - 256,
    "dfine-m": 19_590_064 - 256,
    "dfine-l": 31_289_848 - 256,  # whose backbone's batch norm trains, as in DEIM
    "dfine-x": 62_715_480 - 256,
}


LARGE = ("dfine-l", "dfine-x")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extended) if name in LARGE else name for name in PARAMETERS]
)
def test_parameters_equal_the_originals(name: str) -> None:
    detector = DFine(config=DFINES[name].changed({"image_size": (64, 64)}), num_classes=80, name=name)
    assert sum(int(np.prod(one.shape)) for one in detector.trainable_variables) + 2 == PARAMETERS[name]
