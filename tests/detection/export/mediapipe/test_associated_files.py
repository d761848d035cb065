"""Files in an archive at the end of a model."""

import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.export.mediapipe.associated_files import (
    AssociatedFileError,
    append_files,
    format_calibration,
    format_labels,
    parse_calibration,
    parse_labels,
    read_file,
    remove_files,
)
from detection.export.mediapipe.metadata import ScoreCurve

MODEL = b"\x10\0\0\0TFL3" + b"weights" * 20
FILES = {"labels.txt": b"a\nb\n", "other.txt": b"PK\x05\x06" * 9}

_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_CURVES = st.builds(ScoreCurve, _FLOATS.map(abs), _FLOATS, _FLOATS, st.none() | _FLOATS)
_LABELS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0"), min_size=1)


def test_a_zip_program_finds_stored_files_behind_the_model() -> None:
    content = append_files(MODEL, FILES)
    assert content.startswith(MODEL)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert {info.filename: archive.read(info) for info in archive.infolist()} == FILES
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    assert content == append_files(MODEL, FILES)  # without a time


def test_files_are_read_and_removed() -> None:
    content = append_files(MODEL, FILES)
    assert {name: read_file(content, name) for name in FILES} == FILES
    assert remove_files(content) == MODEL
    assert remove_files(MODEL) == MODEL
    assert remove_files(append_files(MODEL, {})) == MODEL


def _archive(*, compression: int = zipfile.ZIP_STORED, names: tuple[str, ...] = ("labels.txt",)) -> bytes:
    content = io.BytesIO(MODEL)
    with zipfile.ZipFile(content, "a", compression) as archive:
        for name in names:
            archive.writestr(name, b"a\n" * 50)
    return content.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (MODEL, "cannot be read from the archive"),
        (append_files(MODEL, FILES)[:-3], "cannot be read from the archive"),
        (append_files(MODEL, FILES).replace(b"a\nb\n", b"a\nc\n"), "CRC"),
        (append_files(MODEL, {}), "is 0 times in the archive"),
        (_archive(names=("labels.txt", "labels.txt")), "is 2 times in the archive"),
        (_archive(compression=zipfile.ZIP_DEFLATED), "compressed or encrypted, which MediaPipe does not support"),
    ],
)
def test_a_damaged_archive(content: bytes, reason: str) -> None:
    with pytest.raises(AssociatedFileError, match=reason):
        read_file(content, "labels.txt")


def test_a_file_does_not_expand() -> None:
    content = bytearray(append_files(MODEL, FILES))
    entry = content.index(b"PK\x01\x02")
    content[entry + 27] = 0x70  # the size becomes 1.9 GB, that in the archive stays
    with pytest.raises(AssociatedFileError, match="two sizes"):
        read_file(bytes(content), "labels.txt")


@given(st.lists(_LABELS, min_size=1))
def test_labels_come_back(labels: list[str]) -> None:
    assert parse_labels(format_labels(labels)) == tuple(labels)


def test_labels_of_other_programs() -> None:
    assert parse_labels(b"a b\r\nc\r\n") == ("a b", "c")
    assert parse_labels(b"a\nb") == ("a", "b")
    for content, reason in ((b"", "is empty"), (b"a\n\nb\n", "line 2 of the label file is empty"), (b"\xff", "UTF-8")):
        with pytest.raises(AssociatedFileError, match=reason):
            parse_labels(content)


@given(st.lists(st.none() | _CURVES, min_size=1))
def test_curves_come_back_to_the_bit(curves: list[ScoreCurve | None]) -> None:
    assert parse_calibration(format_calibration(curves), len(curves)) == tuple(curves)


def test_curves_are_lines_of_numbers() -> None:
    assert format_calibration([ScoreCurve(1.0, 0.1, -2.5), None, ScoreCurve(0.5, 3.0, 1e-9, 0.25)]) == (
        b"1.0,0.1,-2.5\n\n0.5,3.0,1e-09,0.25\n"
    )
    assert parse_calibration(b" 1, 2,3.\r\n.5,1e2,0,-1", 2) == (ScoreCurve(1, 2, 3), ScoreCurve(0.5, 100, 0, -1))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1,2,3\n", "1 lines for 2 classes"),
        (b"1,2,3\n1,2,3\n1,2,3\n", "3 lines for 2 classes"),
        (b"1,2,3\n1,2\n", "line 2 of the score calibration is not `scale,slope,offset`"),
        (b"1,2,3\n1,2,3,4,5\n", "line 2 of"),
        (b"1,2,x\n1,2,3\n", "line 1 of"),
        (b"1,2,nan\n1,2,3\n", "line 1 of"),
        (b"1,2,1_0\n1,2,3\n", "line 1 of"),
        (b"1,2,1e99\n1,2,3\n", "line 1 of the score calibration is not finite"),
        (b"-1,2,3\n1,2,3\n", "line 1 of the score calibration is not finite, or has a negative scale"),
        (b"\xff\n1,2,3\n", "UTF-8"),
    ],
)
def test_curves_that_mediapipe_refuses_or_misreads(content: bytes, reason: str) -> None:
    with pytest.raises(AssociatedFileError, match=reason):
        parse_calibration(content, 2)
