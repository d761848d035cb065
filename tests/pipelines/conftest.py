"""The data set that the tests of whole runs share."""

from pathlib import Path

import pytest

from detection.datasets.demo_data import make_demo_data


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of the demo's digits; nothing writes there."""
    folder = tmp_path_factory.mktemp("digits") / "data"
    make_demo_data(folder, train_images=12, eval_images=6)
    return folder
