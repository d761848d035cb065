"""The registry of other programs."""

from pathlib import Path

import detection.interop
from detection.interop.programs import PROGRAMS, program_of
from detection.weights.checkpoint_format import CheckpointFormat


def test_every_folder_is_a_program_and_every_program_reads_checkpoints() -> None:
    folders = {path.parent.name for path in Path(detection.interop.__path__[0]).glob("*/program.py")}
    assert folders == {name.replace("-", "_") for name in PROGRAMS}
    for name in PROGRAMS:
        assert all(issubclass(one, CheckpointFormat) for one in program_of(name).formats)
