"""Names that a label file can hold."""

import pytest

from detection.export.mediapipe.metadata import require_labels
from schemas.errors import DataError


def test_names_of_any_script_and_length() -> None:
    require_labels(["a", "a", "n" * 500, "عربى", "日本語", "\ufeffx", " ", "\t\x1b[31m", "😀", "'\"\\%s"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("two\nlines", r"class 1: the name 'two\\nlines' has a line break"),
        ("end\r", r"class 1: the name 'end\\r' has a carriage return"),
        ("nul\0", r"class 1: the name 'nul\\x00' has a NUL character"),
        ("half \ud83d", r"class 1: the name 'half \\ud83d' has a lone surrogate"),
        ("", "class 1: the name '' is empty"),
    ],
)
def test_names_that_it_cannot_hold_are_refused(name: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"^{reason}.*Rename the category") as error:
        require_labels(["fine", name])
    assert "\n" not in str(error.value)


def test_the_message_has_the_category_id() -> None:
    with pytest.raises(DataError, match=r"^category 17: "):
        require_labels(["fine", "not\nfine"], [3, 17])


def test_a_model_without_classes() -> None:
    with pytest.raises(DataError, match="without classes"):
        require_labels([])
