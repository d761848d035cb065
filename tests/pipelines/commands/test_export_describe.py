"""`export --describe` as a user calls it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from detection.export.mediapipe.writer import add_metadata
from pipeline_runner import main
from schemas.artifacts import LITERT_FILE
from tests.detection.export.mediapipe.tiny_models import METADATA, NAMES, detections_model

ROOT = Path(__file__).parents[3]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / LITERT_FILE
    path.write_bytes(add_metadata(detections_model(), METADATA, outputs=NAMES))
    return path


def test_a_file_and_its_folder(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--describe", str(file)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"file         {file}, ")
    assert "labels       3: raccoon, hérisson, chien\n" in out
    assert err == ""
    assert main(["export", f"--describe={file.parent}"]) == 0
    assert capsys.readouterr().out == out


def test_tensorflow_is_not_loaded(file: Path) -> None:
    program = "import sys; from pipeline_runner import main; main(sys.argv[1:]); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program, "export", "--describe", str(file)], check=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda _: detections_model(),
            "has no metadata for MediaPipe. Export the model again with --format mediapipe.",
        ),
        (lambda _: b"no model", "not a LiteRT file, or a damaged one: "),
        (lambda _: b"", "not a LiteRT file, or a damaged one: "),
        (lambda content: content[:-9], "wrong metadata for MediaPipe: 'labels.txt' cannot be read"),
        (lambda content: content[:900], "not a LiteRT file, or a damaged one: "),
    ],
)
def test_other_and_damaged_files_are_refused_on_one_line(
    change: Callable[[bytes], bytes], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(change(file.read_bytes()))
    assert main(["export", "--describe", str(file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {file}: {message}")
    assert err.count("\n") == 1


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "none.tflite", tmp_path):
        assert main(["export", "--describe", str(path)]) == 1
        assert "no such file or folder. Check --describe." in capsys.readouterr().err


def test_a_file_that_is_too_large(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with file.open("wb") as sparse:
        sparse.truncate(1 << 31)
    assert main(["export", "--describe", str(file)]) == 1
    assert "2,147,483,648 bytes are too many for a LiteRT file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "export needs --model and --output, or --describe FILE"),
        (["--model", "m"], "export needs --model and --output, or --describe FILE"),
        (["--describe", "f", "--output", "o"], "--describe exports nothing: call it without --output"),
        (["--precision=int8", "--describe", "f"], "--describe exports nothing: call it without --precision=int8"),
    ],
)
def test_flags_that_do_not_go_together(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *flags]) == 2
    assert message in capsys.readouterr().err
