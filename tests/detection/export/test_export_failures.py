"""What an export leaves that the disk does not take."""

from pathlib import Path

import pytest

from detection.export.saved_model_export import export_saved_model
from detection.models.registry import detector_from_config
from detection.storage.atomic import new_directory
from schemas.errors import CocoflowError
from tests.detection.training import tiny_detector
from tests.detection.training.killed_run import ASSIGNMENTS
from tests.detection.training.tiny_run import CATEGORIES, tiny_config
from tests.full_disk import no_file_above


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_saved_model_that_the_disk_does_not_take_is_not_there(size: int, tmp_path: Path) -> None:
    tiny_detector.register()
    detector = detector_from_config(tiny_config(*ASSIGNMENTS).model, CATEGORIES)
    destination = tmp_path / "saved_model"
    with (
        no_file_above(size),
        pytest.raises(CocoflowError, match=r"SavedModel cannot be written: File too large .*checkpoints are kept"),
        new_directory(destination) as folder,
    ):
        export_saved_model(detector, folder, categories=CATEGORIES, config_yaml="")
    assert list(tmp_path.iterdir()) == []
