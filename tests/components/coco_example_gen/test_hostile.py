"""Data sets as an attacker or a clumsy user makes them: one clear message, never a crash, nothing half done."""

import json
import os
import random
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from components.coco_example_gen.conversion import convert
from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.encode_record import Record, Rules, make_record
from detection.datasets.issues import Issue
from detection.datasets.layouts import find_splits
from detection.datasets.splits import SplitFiles
from detection.images import inspect as image_files
from detection.images.files import ImageFileError, read_file
from detection.input_pipeline.record_decoder import decode_record
from schemas.config.config import DataConfig
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.errors import CocoflowError, DataError
from tests.components.coco_example_gen.data_set import written_entries

FAIL = IssuePolicies.model_validate("fail")
DROP = IssuePolicies.model_validate("drop")
WIDTH, HEIGHT = 20, 10
INT64 = 2**63


def _tree() -> dict[str, Any]:
    """Four images; the first has polygons, an RLE and keypoints, the last no annotation."""
    polygon = [2, 2, 8, 2, 8, 6, 2, 6]
    rle = {"size": [HEIGHT, WIDTH], "counts": [25, 3, 7, 3, 162]}
    common = {"image_id": 1, "bbox": [2, 2, 6, 4], "area": 24.0, "iscrowd": 0}
    return {
        "info": {"year": 2024},
        "licenses": [{"id": 1, "name": "CC BY"}],
        "images": [
            {"id": n, "file_name": f"{n}.png", "width": WIDTH, "height": HEIGHT, "license": 1} for n in (1, 2, 3, 4)
        ],
        "annotations": [
            common | {"id": 10, "category_id": 4, "segmentation": [polygon]},
            common | {"id": 11, "category_id": 4, "bbox": [2, 5, 2, 3], "area": 6.0, "iscrowd": 1, "segmentation": rle},
            common | {"id": 12, "category_id": 2, "keypoints": [3, 3, 2, 0, 0, 0], "num_keypoints": 1},
            common | {"id": 13, "category_id": 2, "image_id": 2},
            common | {"id": 14, "category_id": 2, "image_id": 3},
        ],
        "categories": [
            {"id": 4, "name": "cat"},
            {"id": 2, "name": "person", "keypoints": ["nose", "tail"], "skeleton": [[1, 2]]},
        ],
    }


def _pictures(root: Path) -> None:
    (root / "images").mkdir(parents=True)
    for number in (1, 2, 3, 4):
        Image.new("RGB", (WIDTH, HEIGHT), (number, 9, 99)).save(root / f"images/{number}.png")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images of `_tree`; not to be changed."""
    root = tmp_path_factory.mktemp("hostile")
    _pictures(root)
    return root / "images"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A valid data set."""
    _pictures(tmp_path / "data")
    _write(tmp_path / "data", _tree())
    return tmp_path / "data"


def _write(root: Path, tree: Any) -> None:
    (root / "instances_train.json").write_text(json.dumps(tree))


def _convert(root: Path, policies: IssuePolicies = DROP, max_pixels: int = MAX_PIXELS) -> Path:
    """Converts the one file of `root` beside it."""
    out = root.parent / f"out{len(list(root.parent.glob('out*')))}"
    out.mkdir()
    files = SplitFiles(str(root / "instances_train.json"), str(root / "images"))
    try:
        convert({"train": files}, out, DataConfig(on_fault=policies, max_pixels=max_pixels))
    except CocoflowError:
        assert list(out.iterdir()) == []
        raise
    return out


def _issues(out: Path) -> list[tuple[str, int | None, int | None]]:
    lines = map(json.loads, (out / "quarantine.jsonl").read_text().splitlines())
    return sorted(((line["kind"], line["image_id"], line["annotation_id"]) for line in lines), key=str)


def _records(out: Path) -> list[bytes]:
    return [
        record
        for shard in sorted((out / "Split-train").iterdir())
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()
    ]


def _ids(out: Path) -> tuple[list[int], list[int]]:
    """Ids of the images and of the annotations that were written."""
    entries = written_entries(out)
    annotations = [each["id"] for _, annotations in entries for each in annotations]
    return sorted(image["id"] for image, _ in entries), sorted(annotations)


class _Made(NamedTuple):
    """What became of a data set."""

    issues: list[Issue]
    category_ids: list[int]
    image_ids: list[int]
    annotation_ids: list[int]
    examples: list[bytes]

    @property
    def dropped(self) -> list[Issue]:
        """Issues that left something out."""
        return [issue for issue in self.issues if issue.policy in ("drop", "fail")]


def _examined(pictures: Path, tree: Any, policies: IssuePolicies = DROP) -> _Made:
    """What a conversion makes of a data set, or of the text of its file, without Beam.

    Raises:
        DataError: the annotation file is refused.
    """
    path = pictures.parent / "instances_train.json"
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree))
    index = index_annotations(path, policies=policies)
    rules = Rules(
        policies=policies,
        max_pixels=MAX_PIXELS,
        category_names={each["id"]: each["name"] for each in index.categories},
        keypoints={each["id"]: len(each["keypoints"]) for each in index.categories if each.get("keypoints")},
    )

    def record_of(image: dict[str, Any], annotations: list[dict[str, Any]]) -> Record:
        def read() -> bytes:
            return read_file(str(pictures), image["file_name"], max_pixels=rules.max_pixels)

        return make_record(image, annotations, read=read, split="train", rules=rules)

    entries = list(index.entries())
    records = [record_of(*entry) for entry in entries]
    issues = [*index.issues, *(issue for record in records for issue in record.issues)]
    # What becomes dataset.json and quarantine.jsonl has to be JSON in UTF-8.
    told = [index.info, index.licenses, index.categories, [issue.as_dict() for issue in issues]]
    json.dumps(told, ensure_ascii=False, allow_nan=False).encode()
    return _Made(
        issues=issues,
        category_ids=list(rules.category_names),
        image_ids=[image["id"] for (image, _), record in zip(entries, records, strict=True) if record.example],
        annotation_ids=[each["id"] for record in records for each in record.annotations],
        examples=[record.example.SerializeToString() for record in records if record.example is not None],
    )


# --- image files


def _bomb(width: int, height: int) -> bytes:
    """A valid PNG of some kilobytes that unpacks to width x height grey pixels."""
    packer = zlib.compressobj(9)
    line = bytes(1 + width)
    pixels = b"".join(packer.compress(line) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


FILE_NAMES = {
    "/etc/passwd": "image_unsafe",
    "../../etc/passwd": "image_unsafe",
    "../images/../../data/instances_train.json": "image_unsafe",
    "link.png": "image_unsafe",
    "folder/1.png": "image_unsafe",
    "null\0.png": "image_unsafe",
    "1.png\0": "image_unsafe",
    "": "image_missing",
    ".": "image_missing",
    "pipe.png": "image_missing",
    "loop.png": "image_missing",
    "1.png/": "image_missing",
    "1.png/.": "image_missing",
    "1.png/2.png": "image_missing",
    "1.png/../2.png": "image_missing",
    "x" * 5000 + ".png": "image_missing",
    "\x1b[31mred\n.png": "image_missing",
    "half \ud800.png": "entry",
}


def test_a_file_name_leads_nowhere_else(root: Path) -> None:
    outside = root.parent / "outside"
    _pictures(outside)
    (root / "images/link.png").symlink_to(outside / "images/1.png")
    (root / "images/folder").symlink_to(outside / "images")
    (root / "images/loop.png").symlink_to(root / "images/loop.png")
    os.mkfifo(root / "images/pipe.png")
    tree = _tree()
    hostile = [{"id": 100 + n, "file_name": file_name} for n, file_name in enumerate(FILE_NAMES)]
    tree["images"] = hostile + tree["images"]  # the first ones tell which folder has the images
    _write(root, tree)
    assert find_splits(root)["train"].images == str(root / "images")
    out = _convert(root)
    assert _issues(out) == sorted(((kind, 100 + n, None) for n, kind in enumerate(FILE_NAMES.values())), key=str)
    assert _ids(out) == ([1, 2, 3, 4], [10, 11, 12, 13, 14])
    for line in (out / "quarantine.jsonl").read_text().splitlines():
        issue = json.loads(line)
        assert (issue["where"] + issue["message"]).isprintable()


def test_a_file_name_says_nothing_to_the_terminal(root: Path) -> None:
    tree = _tree()
    tree["images"][1]["file_name"] = "\x1b[31mred\n.png"
    _write(root, tree)
    with pytest.raises(DataError, match=r"train: \\x1b\[31mred\\n\.png \(image 2\): cannot read the image file"):
        _convert(root, FAIL)


def test_a_link_within_the_folder_is_followed(root: Path) -> None:
    (root / "images/2.png").rename(root / "images/real.png")
    (root / "images/2.png").symlink_to("real.png")
    assert _ids(_convert(root))[0] == [1, 2, 3, 4]


def test_bombs_are_refused_before_they_are_decoded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "images/2.png").write_bytes(_bomb(4000, 3000))
    tree = _tree()
    tree["images"][1] |= {"width": 4000, "height": 3000}
    del tree["images"][2]["width"], tree["images"][2]["height"]
    (root / "images/3.png").write_bytes(_bomb(4000, 3000))
    tree["images"][3] |= {"width": 2**62, "height": 2**62}
    _write(root, tree)

    decoded: list[int] = []
    decode = image_files.decode_rgb_eagerly

    def noted(data: bytes, **options: bool) -> Any:
        decoded.append(len(data))
        return decode(data, **options)

    monkeypatch.setattr(image_files, "decode_rgb_eagerly", noted)
    out = _convert(root, max_pixels=1_000_000)
    assert _issues(out) == [("image_huge", number, None) for number in (2, 3, 4)]
    assert _ids(out)[0] == [1]
    with pytest.raises(
        DataError, match=r"train: 2\.png \(image 2\): declared as 4000x3000 pixels, more than data\.max_pixels"
    ):
        _convert(root, FAIL, max_pixels=1_000_000)
    assert decoded
    assert max(decoded) < 1000
    (root / "images/2.png").write_bytes(bytes(4_000_000))
    with pytest.raises(ImageFileError, match="the file has 4000000 bytes, more than 100000 pixels need"):
        read_file(str(root / "images"), "2.png", max_pixels=100_000)


def test_a_file_name_longer_than_any_path_is_missing_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "realpath", lambda path: pytest.fail("resolved name by name"))
    with pytest.raises(ImageFileError, match="File name too long"):
        read_file(str(root / "images"), "x/" * 5000 + "2.png", max_pixels=100_000)


def test_an_issue_shows_the_start_of_a_long_file_name(root: Path) -> None:
    tree = _tree()
    tree["images"][1]["file_name"] = "x" * 100_000
    _write(root, tree)
    out = _convert(root)
    assert ("image_missing", 2, None) in _issues(out)
    assert len((out / "quarantine.jsonl").read_text()) < 5000


# --- annotation files


NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"bbox": [NAN, 0, 5, 5]}, "entry"),
        ({"bbox": [0, 0, INFINITY, 5]}, "entry"),
        ({"bbox": [0, 0, HUGE, 5]}, "entry"),
        ({"bbox": [1e308, 1e308, 1e308, 1e308]}, "entry"),
        ({"bbox": [3e38, 3e38, 3e38, 3e38]}, "box_outside"),
        ({"bbox": [2, 2, -6, 4]}, "box_empty"),
        ({"bbox": ["2", 2, 6, 4]}, "entry"),
        ({"bbox": [True, 2, 6, 4]}, "entry"),
        ({"bbox": {"x": 2}}, "entry"),
        ({"bbox": None}, "entry"),
        ({"area": NAN}, "entry"),
        ({"area": -1}, "entry"),
        ({"area": HUGE}, "entry"),
        ({"area": 1e300}, "entry"),
        ({"area": "24"}, "entry"),
        ({"iscrowd": 2}, "entry"),
        ({"iscrowd": []}, "entry"),
        ({"id": "10"}, "entry"),
        ({"id": INT64}, "entry"),
        ({"image_id": -INT64}, "entry"),
        ({"image_id": HUGE}, "entry"),
        ({"category_id": [4]}, "entry"),
        ({"id": 11}, "duplicate_id"),
        ({"segmentation": [[2, 2, 8, 2, 8, NAN]]}, "mask_broken"),
        ({"segmentation": [[NAN, 2, 8, 2, 8, 6]]}, "mask_broken"),
        ({"segmentation": [[2, 2, 8, 2, 8, HUGE]]}, "mask_broken"),
        ({"segmentation": [[-1e9, 0, 1e9, 0, 1e9, 1e9]]}, "mask_broken"),
        ({"segmentation": [[1e308, 0, -1e308, 0, 5, 5]]}, "mask_broken"),
        ({"segmentation": [[2, 2, 8, 2, 8]]}, "mask_broken"),
        ({"segmentation": [2, 2, 8, 2, 8, 6]}, "mask_broken"),
        ({"segmentation": "polygon"}, "mask_broken"),
        ({"segmentation": 7}, "mask_broken"),
        ({"segmentation": {"counts": [200]}}, "mask_broken"),
        ({"segmentation": {"size": [WIDTH, HEIGHT], "counts": [200]}}, "mask_broken"),
        ({"segmentation": {"size": [10.0, 20], "counts": [200]}}, "mask_broken"),
        ({"segmentation": {"size": [10**9, 10**9], "counts": [10**18]}}, "mask_broken"),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": [2**64 + 200, -(2**64)]}}, "mask_broken"),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": [HUGE]}}, "mask_broken"),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": "o" * 13 * 150}}, "mask_broken"),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": "0" * 10_000}}, "mask_broken"),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": "\ud800"}}, "mask_broken"),
        ({"keypoints": [1, 2]}, "keypoints_broken"),
        ({"keypoints": [1, HUGE, 2]}, "keypoints_broken"),
        ({"keypoints": [1, NAN, 2]}, "keypoints_broken"),
        ({"keypoints": [1, 1, 3]}, "keypoints_broken"),
        ({"keypoints": "nose"}, "keypoints_broken"),
        ({"attributes": {"score": NAN}}, "entry"),
    ],
)
def test_a_hostile_annotation_is_dropped_by_name(pictures: Path, change: dict[str, Any], kind: str) -> None:
    tree = _tree()
    tree["annotations"][0] |= change
    identity = change.get("id", 10)
    made = _examined(pictures, tree)
    assert [issue.kind for issue in made.issues if issue.policy == "drop"] == [kind]
    [issue] = made.issues
    assert issue.annotation_id == (identity if type(identity) is int else None)
    assert str(pictures.parent) in issue.where or issue.where == "train: 1.png"
    assert len(str(issue)) < 2000
    assert made.annotation_ids == [11, 12, 13, 14]


@pytest.mark.parametrize(
    "change",
    [
        {"id": "1"},
        {"width": 0},
        {"width": NAN},
        {"width": INFINITY},
        {"width": "20"},
        {"width": HUGE},
        {"width": None},
        {"height": True},
        {"file_name": 5},
        {"date_captured": NAN},
        {"extra": [[[INFINITY]]]},
    ],
)
def test_a_hostile_image_entry_is_dropped_by_name(pictures: Path, change: dict[str, Any]) -> None:
    tree = _tree()
    tree["images"][0] |= change
    made = _examined(pictures, tree)
    assert {issue.kind for issue in made.issues} == {"entry"}
    assert made.image_ids == [2, 3, 4]
    assert made.annotation_ids == [13, 14]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 5}, r"categories\[1\] \(id 2\): invalid name: 5"),
        ({"name": None}, r"categories\[1\] \(id 2\): invalid name: null"),
        ({"name": "half \ud83d"}, r"categories\[1\] \(id 2\): cannot be written .*: half a character"),
        ({"supercategory": NAN}, r"categories\[1\] \(id 2\): cannot be written .*: NaN or Infinity"),
        ({"keypoints": 5}, r"categories\[1\] \(id 2\): invalid keypoints: 5\. Write a list of names"),
        ({"keypoints": [1, 2]}, r"categories\[1\] \(id 2\): invalid keypoints: \[1, 2\]"),
        ({"skeleton": {"a": 1}}, r"categories\[1\] \(id 2\): invalid skeleton: "),
        ({"skeleton": [[1, "nose"]]}, r"categories\[1\] \(id 2\): invalid skeleton: "),
        ({"id": "2"}, r'categories\[1\]: invalid id: "2"'),
        ({"id": HUGE}, r"categories\[1\] \(id 10000.*\): invalid id: 100000"),
        ({"id": 4}, r"categories\[1\] \(id 4\): duplicate id"),
    ],
)
def test_a_hostile_category_is_refused_by_name(pictures: Path, change: dict[str, Any], message: str) -> None:
    tree = _tree()
    tree["categories"][1] |= change
    with pytest.raises(DataError, match=message) as caught:
        _examined(pictures, tree)
    assert "instances_train.json" in str(caught.value)
    # The same in a keypoints file, where it would be merged.
    if {"keypoints", "skeleton"} & change.keys():
        _write(pictures.parent, _tree())
        points = pictures.parent / "person_keypoints_train.json"
        points.write_text(json.dumps(tree))
        with pytest.raises(DataError, match=message) as caught:
            index_annotations(pictures.parent / "instances_train.json", points)
        assert str(points) in str(caught.value)


def test_odd_names_of_categories_pass_and_are_escaped(root: Path) -> None:
    tree = _tree()
    names = ["", "x" * 10_240, "\x1b[31m\0\n", "<script>alert(1)</script>", "cat", "ねこ 🐈", "{{ 7 * 7 }}"]
    tree["categories"] += [{"id": 100 + n, "name": name} for n, name in enumerate(names)]
    tree["annotations"] += [
        {"id": 100 + n, "image_id": 4, "category_id": 100 + n, "bbox": [n, 0, 2, 2]} for n in range(len(names))
    ]
    _write(root, tree)
    out = _convert(root)
    assert json.loads((out / "dataset.json").read_text())["categories"] == tree["categories"]
    assert _ids(out)[1] == [10, 11, 12, 13, 14, *range(100, 100 + len(names))]
    page = (out / "data_report.html").read_text()
    assert "alert(1)" in page
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("head", "left"),
    [
        ({"info": None, "licenses": None}, [{}, []]),
        ({"info": [], "licenses": {}}, [{}, []]),
        ({"info": [1], "licenses": {"id": 1}}, [{}, []]),
        ({"info": "mine", "licenses": "CC BY"}, [{}, []]),
        ({"info": {"year": NAN}, "licenses": [{"id": INFINITY}]}, [{}, []]),
        ({"info": {"by": "\ud800"}, "licenses": [{"name": "\udfff"}]}, [{}, []]),
        ({"info": {"a": [{}]}, "licenses": ["CC BY"]}, [{"a": [{}]}, ["CC BY"]]),
    ],
)
def test_odd_info_and_licences_are_told(pictures: Path, head: dict[str, Any], left: list[Any]) -> None:
    path = pictures.parent / "instances_train.json"
    _write(pictures.parent, _tree() | head)
    index = index_annotations(path, policies=DROP)
    assert [index.info, index.licenses] == left
    told = [key for key, value in head.items() if value and left == [{}, []]]
    assert [issue.message.split(":")[0] for issue in index.issues] == told
    assert {(issue.kind, issue.policy, issue.where) for issue in index.issues} <= {("entry", "drop", str(path))}


def test_odd_info_stops_or_is_left_out(root: Path) -> None:
    _write(root, _tree() | {"info": [1]})
    with pytest.raises(DataError, match=r"instances_train\.json: info: not an object: \[1\]\. Write one, or remove it"):
        _convert(root, FAIL)
    out = _convert(root)
    assert json.loads((out / "dataset.json").read_text())["info"] == {}
    assert _issues(out) == [("entry", None, None)]


def _text(**changes: Any) -> str:
    return json.dumps(_tree() | changes)


def _replaced(old: str, new: str) -> str:
    text = _text()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a COCO file: expected an object"),
        (b" \n", "not a COCO file: expected an object"),
        (b"\xef\xbb\xbf", "not a COCO file: expected an object"),
        (b"[]", "not a COCO file: expected an object"),
        (b"null", "not a COCO file: expected an object"),
        (b"{}", "expected a list `images`; no keys"),
        (b"\x89PNG\r\n\x1a\n", "not a COCO file: expected an object"),
        (_text().encode("utf-16"), "not a JSON file in UTF-8. Convert it to UTF-8"),
        (_text().encode("utf-16-le"), "not a JSON file in UTF-8. Convert it to UTF-8"),
        (_text().encode("utf-32"), "not a JSON file in UTF-8. Convert it to UTF-8"),
        (_replaced("1.png", "caf\xe9.png").encode(), None),
        (json.dumps(_tree()).replace("1.png", "caf\xe9").encode("latin-1"), r"images\[0\].*not UTF-8"),
        (_text()[:-1].encode(), f"the file, line 1, column {len(_text())}: expected"),
        (_text()[:400].encode(), r"annotations\[0\], line 1, column \d+: Unterminated string"),
        ((_text() + "{}").encode(), "more data after the end"),
        (_text(images={"1": {}}).encode(), "expected a list `images`; images is not a list"),
        (_text(annotations=None).encode(), "annotations is not a list"),
        (_replaced('"info"', '"images": [], "info"').encode(), 'duplicate key "images"'),
        (_replaced('"info"', '"annotations": [], "info"').encode(), 'duplicate key "annotations"'),
        (_replaced('"info"', '"info": {}, "info"').encode(), 'duplicate key "info"'),
        (_replaced('{"year": 2024}', "[" * 100_000).encode(), "info.*(maximum recursion depth|nested|Recursion)"),
        (_replaced("2024", "[" * 63 + "]" * 63).encode(), None),
        (_replaced("2024", "[" * 64 + "]" * 64).encode(), "info, line 1.*nested more than 64 deep"),
        (_replaced("24.0", "[" * 63 + "]" * 63).encode(), None),
        (
            _replaced("24.0", '{"[": ' * 64 + "1" + "}" * 64).encode(),
            r"annotations\[0\] \(id 10\).*nested more than 64",
        ),
        (_replaced("24.0", "1" * 5000).encode(), r"annotations\[0\] \(id 10\).*digits"),
        (
            _replaced("24.0", "24,0").encode(),
            rf"annotations\[0\] \(id 10\), line 1, column {_text().index('24.0') + 4}: ",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(pictures: Path, content: bytes, message: str | None) -> None:
    path = pictures.parent / "instances_train.json"
    path.write_bytes(content)
    if message is None:
        assert len(index_annotations(path, policies=DROP).images) == 4
        return
    with pytest.raises(DataError, match=message) as caught:
        index_annotations(path, policies=DROP)
    assert str(path) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_what_is_no_file_is_refused_and_never_waited_for(root: Path, request: pytest.FixtureRequest) -> None:
    signal.alarm(120)  # who opens a pipe waits for ever: the alarm ends this process
    request.addfinalizer(lambda: signal.alarm(0))
    path = root / "instances_train.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"instances_train\.json: is a folder, pipe or device"):
        _convert(root)
    path.rmdir()
    os.mkfifo(path)
    assert find_splits(root)["train"].annotations == str(path)
    with pytest.raises(DataError, match=r"instances_train\.json: is a folder, pipe or device"):
        _convert(root)
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(DataError, match=r"instances_train\.json: cannot read the file: "):
        _convert(root)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"instances_train\.json: is a folder, pipe or device"):
        _convert(root)


def test_a_file_that_changes_meanwhile_is_told(pictures: Path) -> None:
    _write(pictures.parent, _tree())
    path = pictures.parent / "instances_train.json"
    index = index_annotations(path)
    path.write_text("{" + " " * 300)
    with pytest.raises(DataError, match=r"instances_train\.json: changed while it was read"):
        list(index.entries())


def test_brackets_within_texts_are_no_nesting(pictures: Path) -> None:
    tree = _tree()
    tree["annotations"][0]["note"] = '[{"\\' * 100
    tree["annotations"][1]["parts"] = [[1]] * 100
    assert _examined(pictures, tree).annotation_ids == [10, 11, 12, 13, 14]


def test_annotations_may_come_before_images(root: Path) -> None:
    tree = _tree()
    _write(root, {key: tree[key] for key in ("categories", "annotations", "images")})
    assert _ids(_convert(root)) == ([1, 2, 3, 4], [10, 11, 12, 13, 14])


@pytest.mark.parametrize("policies", [DROP, FAIL])
def test_a_data_set_without_annotations_or_of_crowds_is_one(root: Path, policies: IssuePolicies) -> None:
    _write(root, _tree() | {"annotations": []})
    out = _convert(root, policies)
    assert _ids(out) == ([1, 2, 3, 4], [])
    assert all(tf.shape(decode_record(record, category_ids=[4, 2]).boxes_yxyx)[0] == 0 for record in _records(out))
    _write(root, _tree() | {"annotations": [each | {"iscrowd": 1} for each in _tree()["annotations"][:2]]})
    out = _convert(root, policies)
    assert _ids(out) == ([1, 2, 3, 4], [10, 11])
    assert all(tf.shape(decode_record(record, category_ids=[4, 2]).boxes_yxyx)[0] == 0 for record in _records(out))


def test_ids_at_the_ends_of_their_range(root: Path) -> None:
    """Asymmetric: an id rounded to a float32 would meet its neighbour."""
    ends = [0, 1, 2**53 - 1, 2**53]
    tree = _tree()
    tree["images"] = [image | {"id": end} for image, end in zip(tree["images"], ends, strict=True)]
    box = {"category_id": 4, "bbox": [2, 2, 6, 4]}
    tree["annotations"] = [box | {"id": end, "image_id": end} for end in ends]
    tree["categories"].append({"id": 2**53, "name": "last"})
    _write(root, tree)
    out = _convert(root)
    assert _issues(out) == []
    for image, annotations in written_entries(out):
        assert [each["id"] for each in annotations] == [image["id"]]


def test_two_entries_for_one_file(root: Path) -> None:
    tree = _tree()
    tree["images"][3]["file_name"] = "1.png"
    _write(root, tree)
    assert _ids(_convert(root))[0] == [1, 2, 3, 4]
    out = _convert(root, IssuePolicies(DROP.root | {"image_duplicate": "drop"}))
    assert (_ids(out)[0], _issues(out)) == ([1, 2, 3], [("image_duplicate", 4, None)])


def test_huge_extra_fields_of_an_image_come_through(root: Path) -> None:
    tree = _tree()
    tree["images"][0]["extra"] = {"text": "é" * 3_000_000, "numbers": list(range(100_000))}
    _write(root, tree)
    out = _convert(root)
    assert _ids(out)[0] == [1, 2, 3, 4]
    assert tree["images"][0] in [image for image, _ in written_entries(out)]


def test_a_mask_is_no_better_box_where_it_leaves_the_image(pictures: Path) -> None:
    tree = _tree()
    tree["annotations"][0] |= {"segmentation": [[2, 2, 35, 2, 35, 6, 2, 6]], "area": 24.0}
    made = _examined(pictures, tree, IssuePolicies.model_validate("fix"))
    assert [(issue.kind, issue.policy) for issue in made.issues] == [("mask_box", "drop")]


# --- generated


NUMBERS = [0, 1, -1, 2, 10, 2**31, INT64, INT64 - 1, -INT64, HUGE, -HUGE]
FLOATS = [3.5, -0.0, 1e308, -1e308, 5e-324, NAN, INFINITY, -INFINITY]
TEXTS = ["", "1", "1.png", "\0", "\ud800", "../1.png", "é"]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [{}], {"id": 1}]
KEYS = st.sampled_from(["id", "size", "counts"])
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([*NUMBERS, *FLOATS, *TEXTS, *OTHERS]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place in a tree: its container and the key there."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _nodes(inner)


def _replace(container: Any, key: Any, junk: Any) -> None:
    container[key] = junk


def _delete(container: Any, key: Any, junk: Any) -> None:
    del container[key]


def _repeat(container: Any, key: Any, junk: Any) -> None:
    if isinstance(container, list):
        container.insert(key, container[key])
    else:
        container[f"{key}_"] = container[key]


def _swap(container: Any, key: Any, junk: Any) -> None:
    other = random.Random(ascii(junk)).choice(list(container) if isinstance(container, dict) else range(len(container)))
    container[key], container[other] = container[other], container[key]


MUTATIONS: list[Callable[[Any, Any, Any], None]] = [_replace, _replace, _replace, _delete, _repeat, _swap]


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """The text of a data set, damaged in a few places."""
    tree = _tree()
    for _ in range(draw(st.integers(1, 4))):
        nodes = list(_nodes(tree))
        if nodes:
            container, key = nodes[draw(st.integers(0, len(nodes) - 1))]
            draw(st.sampled_from(MUTATIONS))(container, key, draw(JUNK))
            tree = json.loads(json.dumps(tree))  # no part is shared
    text = json.dumps(tree)
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(text)))
        text = (
            text[:cut]
            + draw(st.sampled_from(["", "\0", "\xff", "}", "]", "[" * 3000]))
            + text[cut + draw(st.integers(0, 3)) :]
        )
    return text


def _check(text: str, made: _Made) -> None:
    """Each annotation of the file is written once, or an issue says why not; what is written can be trained on."""
    annotations = [each for each in json.loads(text)["annotations"] if isinstance(each, dict)]
    image_of = {each["id"]: each.get("image_id") for each in annotations if type(each.get("id")) is int}
    lost = {(type(issue.image_id), issue.image_id) for issue in made.dropped if issue.annotation_id is None}
    left_out = {issue.annotation_id for issue in made.dropped}
    left_out |= {number for number, image in image_of.items() if type(image) is int and (int, image) in lost}
    assert len(set(made.annotation_ids)) == len(made.annotation_ids)
    assert set(made.annotation_ids) <= image_of.keys() <= set(made.annotation_ids) | left_out
    for example in made.examples:
        sample = decode_record(example, category_ids=made.category_ids or [0])
        boxes = sample.boxes_yxyx.numpy()
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
        assert (boxes[:, :2] <= boxes[:, 2:]).all()
        assert boxes.shape[0] == sample.classes.shape[0]


def _examined_or_refused(pictures: Path, text: str, policies: IssuePolicies) -> _Made | CocoflowError:
    try:
        return _examined(pictures, text, policies)
    except CocoflowError as error:
        return error


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=_mutated(), policies=st.sampled_from(["drop", "drop", "fix", "fail"]))
def test_whatever_stands_in_the_file_is_read_or_refused(pictures: Path, text: str, policies: str) -> None:
    made = _examined_or_refused(pictures, text, IssuePolicies.model_validate(policies))
    if isinstance(made, CocoflowError):
        assert "instances_train.json" in str(made)
        assert len(str(made)) < 3000
    else:
        _check(text, made)


def _converted_or_refused(pictures: Path, text: str, out: Path) -> _Made | CocoflowError:
    path = pictures.parent / "instances_train.json"
    path.write_text(text)
    files = SplitFiles(str(path), str(pictures))
    try:
        convert({"train": files}, out, DataConfig(on_fault=DROP))
    except CocoflowError as error:
        return error
    dataset = json.loads((out / "dataset.json").read_text())
    image_ids, annotation_ids = _ids(out)
    return _Made(
        issues=[Issue(**json.loads(line)) for line in (out / "quarantine.jsonl").read_text().splitlines()],
        category_ids=[each["id"] for each in dataset["categories"]],
        image_ids=image_ids,
        annotation_ids=annotation_ids,
        examples=_records(out),
    )


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(text=_mutated())
def test_whatever_stands_in_the_file_is_converted_or_nothing_is_left(
    pictures: Path, text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("out")
    made = _converted_or_refused(pictures, text, out)
    if isinstance(made, CocoflowError):
        assert "instances_train.json" in str(made) or "train: " in str(made)
        assert list(out.iterdir()) == []
    else:
        _check(text, made)
