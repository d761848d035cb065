import pytest

from detection.datasets.groups import group_of
from detection.datasets.splits import SplitFiles
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("1.jpg", "1"),
        ("a/1.jpg", "a/1"),
        ("300_jpg.rf.084d19439667d076569f6ad8bbadbc08.jpg", "300"),
        ("a/x_png.rf.0123456789abcdef.png", "a/x"),
        ("frame.rf.tomato.jpg", "frame.rf.tomato"),
        ("no suffix", "no suffix"),
        (".jpg", ".jpg"),
    ],
)
def test_the_name_without_the_hash_of_a_copy(name: str, group: str) -> None:
    assert group_of({"id": 7, "file_name": name}) == group


def test_a_pattern_or_a_field_joins_images() -> None:
    image = {"id": 1, "file_name": "clip7_frame12.jpg", "video_id": 3}
    assert group_of(image, r"(.*)_frame\d+") == group_of(image | {"file_name": "clip7_frame1.jpg"}, r"(.*)_frame\d+")
    assert group_of(image, r"clip\d+") == group_of(image | {"file_name": "x-clip7.jpg"}, r"clip\d+")
    assert group_of(image, "video_id") == group_of(image | {"file_name": "other.jpg"}, "video_id")
    assert group_of({"file_name": "1.jpg"}, "video_id") == group_of({"file_name": "1.jpg"}, "(x+)") == "1"
    with pytest.raises(ConfigError, match=r"data\.group = '\(': no regular expression"):
        group_of(image, "(")


def test_copies_are_in_one_split() -> None:
    names = [f"{number}_jpg.rf.{copy:032x}.jpg" for number in range(200) for copy in range(3)]
    half = SplitFiles("a", "b", hash_range=(0.0, 0.5))
    held = {name for name in names if half.holds({"file_name": name})}
    assert {name.partition("_")[0] for name in held}.isdisjoint(name.partition("_")[0] for name in set(names) - held)
    assert 0.4 < len(held) / len(names) < 0.6
