"""The conversion on Cloud Storage: the same examples as on this machine, and none that only look whole."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen import shards
from components.coco_example_gen.conversion import convert
from components.coco_example_gen.spans.fingerprint import fingerprint
from components.coco_example_gen.spans.span_paths import locate_given, locate_root
from detection.datasets.layouts import EXAMPLES_WORK, find_splits, given_splits
from detection.datasets.splits import SplitFiles
from detection.images.files import ImageFileError, read_file
from detection.storage import files, paths
from detection.storage.atomic import write_text
from detection.storage.files import read_bytes
from schemas.artifacts import DATASET_JSON
from schemas.config.config import DataConfig
from schemas.errors import ConfigError, DataError
from tests.components.coco_example_gen.data_set import write_data_set
from tests.components.coco_example_gen.remote_data import DROP, contents, converted, upload
from tests.storage_emulator.fixture import Bucket


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def plain_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without its page."""

    def write(examination: Any, path: str | Path) -> None:
        write_text(path, "report")

    monkeypatch.setattr("components.coco_example_gen.conversion.write_data_report", write)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A box of image 1 lies outside, the file of image 2 is absent."""
    write_data_set(tmp_path / "data", broken=True)
    return tmp_path / "data"


def elsewhere(splits: dict[str, SplitFiles], there: str | Path, here: str | Path) -> dict[str, SplitFiles]:
    """The splits of a folder as they are in its copy."""

    def moved(value: Any) -> Any:
        return value.replace(str(there), str(here)) if isinstance(value, str) else value

    return {
        name: SplitFiles(**{key: moved(value) for key, value in vars(of_split).items()})
        for name, of_split in splits.items()
    }


def test_remote_data_gives_the_same_examples_here_and_there(
    data: Path, tmp_path: Path, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "IMAGES_PER_SHARD", 2)
    remote = upload(data, f"{gcs.path}/data")
    splits = find_splits(remote)
    assert splits == elsewhere(find_splits(data), data, remote)
    expected = converted(find_splits(data), tmp_path / "out")
    assert {"image_missing", "box_outside"} == {
        json.loads(line)["kind"] for line in expected["quarantine.jsonl"].splitlines()
    }
    assert converted(splits, f"{gcs.path}/out") == expected
    assert converted(splits, tmp_path / "mixed") == expected
    assert converted(find_splits(data), f"{gcs.path}/mixed") == expected
    there, here = (
        read_bytes(f"{gcs.path}/out/data_report.html").decode(),
        (tmp_path / "out/data_report.html").read_text(),
    )
    # Without the places where a path may break, which depend on its length.
    assert there.replace("<wbr>", "").replace(remote, str(data)) == here.replace("<wbr>", "")


@pytest.mark.usefixtures("plain_report")
def test_records_are_read_and_divided_as_here(data: Path, tmp_path: Path, gcs: Bucket) -> None:
    converted(find_splits(data), tmp_path / "records")
    remote = upload(tmp_path / "records", f"{gcs.path}/records")
    assert find_splits(remote) == elsewhere(find_splits(tmp_path / "records"), tmp_path / "records", remote)
    assert converted(find_splits(remote), f"{gcs.path}/out") == converted(
        find_splits(tmp_path / "records"), tmp_path / "out"
    )
    [shard] = (tmp_path / "records/Split-train").iterdir()
    files.copy_file(shard, f"{gcs.path}/other/train-00000-of-00001.tfrecord")
    assert find_splits(f"{gcs.path}/other")["train"].annotations == f"{gcs.path}/other/train-*-of-*.tfrecord"


NAMES = [
    "with space.png",
    "ünï_图.png",
    "a[1]*?.png",
    "#1.png",
    "100%25.png",
    "./dot.png",
    "deep//er.png",
    "deep/../deep/er2.png",
    "q?x=1&y.png",
    "back\\slash.png",
    "+plus+.png",
]
REFUSED = [
    "../images",
    "/etc/passwd",
    "null\0.png",
    "",
    ".",
    "1.png/",
    "1.png/.",
    "1.png/2.png",
    "1.png/../1.png",
    "x" * 1500 + ".png",
    "line\n.png",
]


@pytest.mark.parametrize("folder", ["plain", "my data [1] #% ü"])
def test_awkward_names_are_the_same_files(folder: str, tmp_path: Path, gcs: Bucket) -> None:
    local, remote = tmp_path / folder / "images", f"{gcs.path}/{folder}/images"
    for number, name in enumerate(["1.png", *NAMES]):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(bytes([number]))
    upload(local, remote)

    def outcome(root: str, name: str) -> Any:
        try:
            return read_file(root, name, max_pixels=100)
        except ImageFileError as error:
            return error.kind

    here = {name: outcome(str(local), name) for name in [*NAMES, *REFUSED]}
    assert [here[name] for name in NAMES] == [bytes([number]) for number in range(1, len(NAMES) + 1)]
    assert {name: outcome(remote, name) for name in here} == here
    (local / "large.png").write_bytes(bytes(2**20 + 1601))
    files.copy_file(local / "large.png", f"{remote}/large.png")
    with pytest.raises(ImageFileError, match="the file has 1050177 bytes, more than 100 pixels need"):
        read_file(remote, "large.png", max_pixels=100)


@pytest.mark.usefixtures("plain_report")
def test_a_data_set_in_an_awkward_folder(data: Path, tmp_path: Path, gcs: Bucket) -> None:
    annotations = data / "annotations/instances_train.json"
    tree = json.loads(annotations.read_text())
    for annotation in tree["annotations"]:
        annotation |= {"keypoints": [annotation["id"], 2, 2], "num_keypoints": 1}
    annotations.with_name("person_keypoints_train.json").write_text(json.dumps(tree))
    remote = upload(data, f"{gcs.path}/my data [1] #% ü/{{x}}")
    expected = converted(find_splits(data), tmp_path / "out")
    assert converted(locate_root(remote).files, f"{gcs.path}/out [2]") == expected


@pytest.mark.usefixtures("plain_report")
def test_a_service_that_refuses_is_no_issue_of_the_images(data: Path, gcs: Bucket) -> None:
    """Otherwise a lapse of the network would leave images out for good."""
    remote = upload(data, f"{gcs.path}/data")
    gcs.emulator.fail("status", status=403, path=r"train/1/3\.png", times=0)
    with pytest.raises(Exception, match=r"train/1/3\.png: Cloud Storage refuses access"):
        converted(find_splits(remote), f"{gcs.path}/out")
    assert contents(f"{gcs.path}/out") == {}
    gcs.emulator.clear()
    gcs.emulator.fail("status", status=503, path=r"/images/", times=3)
    gcs.emulator.fail("reset", path=r"/images/", skip=5, times=2)
    assert DATASET_JSON in converted(find_splits(remote), f"{gcs.path}/out")
    assert gcs.emulator.clear() == 5


def test_spans_are_found_as_here(tmp_path: Path, gcs: Bucket) -> None:
    local = tmp_path / "data"
    for made in ("001/v1", "009/v2", "010/v1", "010/v3"):
        write_data_set(local / f"s-{made}")
    (local / "s-011/v1/images").mkdir(parents=True)
    (local / "s-011/v1/images/only.png").write_bytes(b"pictures so far")
    remote = upload(local, f"{gcs.path}/data")

    for span, version in ((None, None), (9, None), (10, 1)):
        here = locate_root(f"{local}/s-{{SPAN:3}}/v{{VERSION}}", span=span, version=version)
        there = locate_root(f"{remote}/s-{{SPAN:3}}/v{{VERSION}}", span=span, version=version)
        assert there.newest == here.newest
        assert there.files == elsewhere(here.files, local, remote)
    folders = (f"{local}/s-{{SPAN:3}}/v{{VERSION}}", f"{remote}/s-{{SPAN:3}}/v{{VERSION}}")
    here, there = (
        locate_given({"train": (f"{folder}/annotations/instances_train.json", f"{folder}/images")})
        for folder in folders
    )
    assert there.newest == here.newest == (10, 3)
    assert there.files == elsewhere(here.files, local, remote)
    with pytest.raises(DataError, match=r"no span 2 found, only 1, 10\."):
        locate_root(f"{remote}/s-{{SPAN:3}}/v1", span=2)


@pytest.mark.parametrize(
    ("annotations", "images"),
    [
        ("annotations/instances_train2017.json", "train2017"),
        ("instances_train.json", "images/train"),
        ("annotations/person_keypoints_train.json", "images"),
        ("train/_annotations.coco.json", "train"),
    ],
)
def test_layouts_are_recognised_as_here(annotations: str, images: str, tmp_path: Path, gcs: Bucket) -> None:
    local, made = tmp_path / "data", tmp_path / "made"
    write_data_set(made)
    upload(made / "images", str(local / images))
    files.copy_file(made / "annotations/instances_train.json", local / annotations)
    remote = upload(local, f"{gcs.path}/data")
    here = find_splits(local)
    assert here["train"].images == str(local / images)
    assert find_splits(remote) == elsewhere(here, local, remote)


def test_what_is_not_there_is_told(data: Path, gcs: Bucket) -> None:
    remote = upload(data, f"{gcs.path}/data")
    with pytest.raises(DataError, match=re.escape(f"{gcs.path}/absent: no such data set folder")):
        find_splits(f"{gcs.path}/absent")
    with pytest.raises(DataError, match=r"no data set recognised"):
        find_splits(f"{remote}/images")
    with pytest.raises(DataError, match=r"absent\.json: no such annotation file"):
        given_splits({"train": (f"{remote}/absent.json", f"{remote}/images")})
    with pytest.raises(DataError, match="no such image folder"):
        given_splits({"train": (f"{remote}/annotations/instances_train.json", f"{remote}/absent")})
    with pytest.raises(ConfigError, match=r"data\.root s3://b/x: s3:// is not supported"):
        locate_root("s3://b/x")
    with pytest.raises(ConfigError, match=r"data\.splits\.train\.images gs:/b/x: one slash is missing"):
        locate_given({"train": (f"{remote}/a.json", "gs:/b/x")})


def test_the_fingerprint_follows_the_objects_that_are_used(data: Path, gcs: Bucket) -> None:
    remote = upload(data, f"{gcs.path}/data")
    splits = find_splits(remote).values()
    gcs.emulator.requests()
    seen = {fingerprint(splits)}
    assert sum("/o" in request["target"] and "list" not in request for request in gcs.emulator.requests()) < 16
    files.copy_file(data / "images/train/1/1.png", f"{remote}/images/train/1/unused.png")
    assert {fingerprint(splits)} == seen
    for name in ("images/train/1/3.png", "annotations/instances_val.json"):
        files.copy_file(data / name, f"{remote}/{name}")  # the same content, written anew
        seen.add(fingerprint(splits))
    files.remove_file(f"{remote}/images/train/1/5.png")
    seen.add(fingerprint(splits))
    assert len(seen) == 4


def is_refused_or_whole(root: str, whole: dict[str, bytes]) -> bool:
    """Whether examples are whole; others have no dataset.json, and are not recognised as a data set."""
    if files.is_file(paths.join(root, DATASET_JSON)):
        left = {name: content for name, content in contents(root).items() if not name.startswith(EXAMPLES_WORK)}
        assert left == whole
        return True
    with pytest.raises(DataError, match=r"incomplete examples: no dataset|no such data set folder|no data set"):
        find_splits(root)
    return False


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"times": 0}, id="gone"),
        pytest.param({"times": 1}, id="once", marks=pytest.mark.extended),
        pytest.param({"times": 1, "after": True}, id="answer lost", marks=pytest.mark.extended),
        pytest.param({"times": 0, "after": True}, id="gone after it", marks=pytest.mark.extended),
    ],
)
@pytest.mark.usefixtures("plain_report")
def test_a_fault_at_any_write_leaves_nothing_that_looks_whole(
    rule: dict[str, Any], tmp_path: Path, gcs: Bucket
) -> None:
    """`gone`: the clean-up fails as well, as after a kill."""
    write_data_set(tmp_path / "data", images=2)
    splits = find_splits(tmp_path / "data")
    whole = converted(splits, tmp_path / "out")
    out = f"{gcs.path}/out"
    whole_after = []
    for number in itertools.count():
        gcs.emulator.fail("status", status=403, method="write", path="/out/|out%2F|name=out", skip=number, **rule)
        failure = ""
        try:
            convert(splits, out, DataConfig(on_fault=DROP))
        except Exception as error:
            failure = str(error)
        fired = gcs.emulator.clear()
        whole_after.append(is_refused_or_whole(out, whole))
        assert "Cloud Storage refuses access" in failure if failure else whole_after[-1]
        if not fired:
            break
    assert len(whole_after) > 10
    assert converted(splits, out) == whole
