"""`check-data` as a user calls it."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import pipeline_runner
from schemas.config.issues import ISSUE_KINDS
from tests.components.coco_example_gen import layouts
from tests.components.coco_example_gen.data_set import write_data_set
from tests.html_page import HtmlPage

Change = Callable[[Path, dict[str, Any]], None]


def call(*arguments: str | Path) -> int:
    return pipeline_runner.main(["check-data", *map(str, arguments)])


def edit(root: Path, change: Change, split: str = "train") -> None:
    path = root / f"annotations/instances_{split}.json"
    tree = json.loads(path.read_text())
    change(root, tree)
    path.write_text(json.dumps(tree))


def without_the_empty_category(root: Path, tree: dict[str, Any]) -> None:
    tree["categories"].pop()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid data set, in an otherwise empty working directory: train has 5 images, eval one, all with two boxes."""
    root = tmp_path / "data"
    write_data_set(root)
    for split in ("train", "val"):
        edit(root, without_the_empty_category, split)
    monkeypatch.chdir(tmp_path)
    return root


def page_of(path: Path) -> HtmlPage:
    return HtmlPage(path.read_text())


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_valid_data_set(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = files(tmp_path)
    assert call("--data", data) == 0
    captured = capfd.readouterr()
    rows = [re.findall(r"[\w.]+", line) for line in captured.out.splitlines() if "│" in line]
    assert rows == [["train", "5", "10", "0", "0", "0", "2"], ["eval", "1", "2", "0", "0", "0", "2"]]
    assert captured.out.splitlines()[0] == "Yes, you can train on this: no issues."
    assert captured.err == ""
    assert files(tmp_path) == before


def box_outside(root: Path, tree: dict[str, Any]) -> None:
    tree["annotations"][2]["bbox"] = [70, 0, 50, 5]


def box_empty(root: Path, tree: dict[str, Any]) -> None:
    tree["annotations"][2]["bbox"] = [7, 0, 0, 5]


def no_such_category(root: Path, tree: dict[str, Any]) -> None:
    tree["annotations"][2]["category_id"] = 77


def file_missing(root: Path, tree: dict[str, Any]) -> None:
    (root / "images/train/0/2.png").unlink()


def file_cut_off(root: Path, tree: dict[str, Any]) -> None:
    path = root / "images/train/0/2.png"
    path.write_bytes(path.read_bytes()[:-20])


def same_pixels(root: Path, tree: dict[str, Any]) -> None:
    (root / "images/train/1/3.png").write_bytes((root / "images/train/0/2.png").read_bytes())


def category_without_annotations(root: Path, tree: dict[str, Any]) -> None:
    tree["categories"].append({"id": 5, "name": "goose"})


@pytest.mark.parametrize(
    ("change", "expected", "told"),
    [
        (box_outside, ("box_outside", "fail"), "train: train/0/2.png (image 2, annotation 4): bbox [70, 0, 50, 5]"),
        (
            box_empty,
            ("box_empty", "drop"),
            "train: train/0/2.png (image 2, annotation 4): bbox [7, 0, 0, 5] has no area",
        ),
        (
            no_such_category,
            ("entry", "fail"),
            "{data}/annotations/instances_train.json (image 2, annotation 4): unknown category_id: 77",
        ),
        (file_missing, ("image_missing", "fail"), "train: train/0/2.png (image 2): cannot read the image file"),
        (file_cut_off, ("image_broken", "fail"), "train: train/0/2.png (image 2): the image file cannot be decoded"),
        (
            same_pixels,
            ("image_duplicate", "keep"),
            "train: train/1/3.png (image 3): the same pixels as train: train/0/2.png (image 2)",
        ),
        (
            category_without_annotations,
            ("category_empty", "keep"),
            "{data}/annotations/instances_train.json: category 5 (goose) has no annotation",
        ),
    ],
)
def test_any_issue_is_reported_and_the_exit_code_says_whether_a_run_stops(
    data: Path, capfd: pytest.CaptureFixture[str], change: Change, expected: tuple[str, str], told: str
) -> None:
    kind, policy = expected
    edit(data, change)
    before = files(data)
    assert call("--data", data) == (1 if policy == "fail" else 3)
    lines = capfd.readouterr().out.splitlines()
    [number] = [number for number, line in enumerate(lines) if line.startswith(kind)]
    meaning = ISSUE_KINDS[kind].description.partition(";")[0]
    assert lines[number] == f"{kind} (1 issue, data.on_fault: {policy}): {meaning}"
    assert lines[number + 1].startswith(f"  {told.format(data=data)}")
    assert lines[number + 2].startswith("  In the files: ")
    assert lines[0].startswith("No, you cannot train on this yet: 1 of 1 issue" if policy == "fail" else "Yes, ")
    assert "│ train │" in lines[-3], "the statistics come last"
    assert files(data) == before


def all_boxes_outside(root: Path, tree: dict[str, Any]) -> None:
    for annotation in tree["annotations"]:
        annotation["bbox"] = [70, 0, 50, 5]


def test_policies_are_shown_and_of_many_issues_the_first(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit(data, all_boxes_outside)
    assert call("--data", data, "--set", "data.on_fault.box_outside=fix") == 3
    lines = capfd.readouterr().out.splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith("box_outside (10 issues, data.on_fault: fix): ")]
    assert sum("is outside the 80x40 image" in line for line in lines) == 5
    assert lines[number + 6] == "  ... and 5 more"
    assert lines[0] == "Yes, you can train on this: 10 issues of 1 kind, 10 fixed."
    at = lines.index("Images with most issues:")
    assert lines[at + 1] == "  train: train/0/2.png (image 2): 2 of box_outside (annotations 4, 5)"
    assert lines.index("Categories with most annotations concerned:") > at


ODD_NAME = "\x1b[31m<img src=x onerror=alert(1)> :dog: [bold]{{ 7 * 7 }}\r.png"
SHOWN = "\\x1b[31m<img src=x onerror=alert(1)> :dog: [bold]{{ 7 * 7 }}\\r.png"


def odd_names(root: Path, tree: dict[str, Any]) -> None:
    tree["images"][1]["file_name"] = ODD_NAME  # missing
    for image in tree["images"][2:4]:  # there, and the same
        image["file_name"] = f"{image['id']}{ODD_NAME}"
        Image.new("RGB", (80, 40)).save(root / "images" / f"{image['id']}{ODD_NAME}".replace("/", "_"))
    tree["categories"].append({"id": 5, "name": ODD_NAME})


def test_names_are_shown_as_they_are_and_never_obeyed(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """So they are on the page: test_data_report.py."""
    edit(data, odd_names)
    assert call("--data", data) == 1
    out = capfd.readouterr().out
    assert f"  train: {SHOWN} (image 2): cannot read" in out
    assert f"  train: 4{SHOWN} (image 4): the same pixels as train: 3{SHOWN} (image 3)." in out
    assert f"category 5 ({SHOWN}) has no annotation." in out
    assert all(line.isprintable() for line in out.split("\n"))


def test_a_report_is_one_page_with_a_picture_of_the_issue(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit(data, box_outside)
    before = files(tmp_path)
    assert call("--data", data, "--report", "new/page.html") == 1
    assert capfd.readouterr().out.splitlines()[-1] == "Report: new/page.html"
    assert files(tmp_path).keys() - before.keys() == {"new/page.html"}
    page = page_of(tmp_path / "new/page.html")
    assert "bbox [70, 0, 50, 5] (x, y, width, height) is outside the 80x40 image" in page.texts["issues"]
    assert len(page.images["issue-pictures"]) == 1


def test_a_report_of_a_valid_data_set_replaces_an_old_one(data: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    assert call("--data", data, "--report", tmp_path / "page.html") == 0
    assert "Yes, you can train on this: no issues." in page_of(tmp_path / "page.html").texts[""]


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["--data", "nowhere", "--report", "new/page.html"], 1, ["nowhere: no such data set folder", "Check --data"]),
        (["--data", "data", "--set", "data.on_falt=drop"], 2, ["unknown key data.on_falt", "data.on_fault"]),
        (["--data", "data", "--set", "data.on_fault.box_outsid=fix"], 2, ["data.on_fault: box_outsid: no"]),
        (["--data", "data", "--set", "data.on_fault.entry=keep"], 2, ["data.on_fault: entry = keep", "fail", "drop"]),
        (["--data", "data", "--set", "data.window=2"], 2, ["data.window = 2", "remove data.window"]),
        (["--report", "new/page.html"], 2, ["no data set: give --data DIR"]),
        (["--data", "data", "--report", "data"], 1, ["--report data: this is a folder. Name a file in it."]),
        (["--data", "data", "--report", ""], 1, ["this is a folder. Name a file in it."]),
        (["--data", "data", "--report", "file/page.html"], 1, ["cannot write: ", "or name another."]),
        (["--data", "data", "--report", "/proc/page.html"], 1, ["/proc", "cannot write: ", "or name another."]),
    ],
)
def test_a_user_error_is_one_line_and_nothing_is_written(
    data: Path, arguments: list[str], code: int, parts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    tmp_path = data.parent
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert call(*arguments) == code
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    for part in parts:
        assert part in captured.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_label_map_of_annotation_files_is_refused(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("--data", data, "--set", "data.label_map=map.pbtxt") == 2
    message = capfd.readouterr().err
    assert "data.label_map = map.pbtxt: annotation files have their own categories" in message
    assert "--set data.label_map=null" in message


def test_of_dated_folders_the_newest_is_checked(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_data_set(tmp_path / "in/2026-11-20", images=3)
    data.rename(tmp_path / "in/2026-11-21")
    assert call("--data", "in/{YYYY}-{MM}-{DD}") == 0
    assert re.search(r"train\W+5\W+10\W", capfd.readouterr().out)
    assert call("--data", "in/{YYYY}-{MM}-{DD}", "--set", "data.span=2026-11-20") == 3
    assert re.search(r"train\W+3\W+6\W", capfd.readouterr().out)


def test_awkward_images_are_issues_as_their_manifest_says(
    shared_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shared_data / "nasty_images"
    entries = json.loads((folder / "manifest.json").read_text())["files"]
    images = [{"id": number, "file_name": entry["file"]} for number, entry in enumerate(entries)]
    annotations = tmp_path / "instances.json"
    annotations.write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    source = [f"data.splits.train.annotations={annotations}", f"data.splits.train.images={folder}"]
    assert call("--set", source[0], "--set", source[1], "--report", tmp_path / "page.html") == 1
    out = capfd.readouterr().out
    assert "Op:" not in out
    assert "DOS attack" not in out
    assert ".." not in out.replace("... and", "").replace(str(tmp_path), "")
    counts = {kind: int(count) for kind, count in re.findall(r"^(\w+) \((\d+) issues?, ", out, re.M)}
    counts.pop("image_duplicate")
    assert counts.pop("image_contrast") == 1  # which is accepted
    expected = Counter(entry["expect"] for entry in entries)
    assert counts.pop("image_unsupported") >= expected["accept_if_reencoded_else_skip"]
    assert counts.keys() == {"image_broken", "image_huge"}
    [issues] = page_of(tmp_path / "page.html").tables["issues"]
    told = [
        where.split(": ")[1]
        for kind, _, where, *_ in issues
        if kind in ("image_broken", "image_huge", "image_unsupported")
    ]
    assert sorted(told) == sorted(entry["file"] for entry in entries if entry["expect"] != "accept")


@pytest.mark.parametrize("damage", ["missing", "empty"])
@pytest.mark.parametrize("command", ["check-data", "to-coco", "to-examples"])
def test_our_own_records_are_read_whole_or_not_at_all(
    data: Path, tmp_path: Path, command: str, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert pipeline_runner.main(["to-examples", "--data", str(data), "--output", "examples"]) == 0
    (shard,) = (tmp_path / "examples/Split-train").iterdir()
    if damage == "missing":  # as if there had been two
        shard.rename(shard.with_name(shard.name.replace("-of-00001", "-of-00002")))
        message = "1 of 2 shards are missing, the first is -00001-of-00002"
    else:
        shard.write_bytes(b"")
        message = "Split-train: 0 images, but dataset.json has 5: a file of records is missing, empty"
    capfd.readouterr()
    given = ["--examples" if command == "to-coco" else "--data", "examples"]
    output = [] if command == "check-data" else ["--output", "out"]
    assert pipeline_runner.main([command, *given, *output]) != 0
    captured = capfd.readouterr()
    assert message in " ".join((captured.out + captured.err).split())
    assert not (tmp_path / "out").exists()


def test_pictures_that_no_file_lists_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for seed, split in enumerate(("train", "val")):
        tree = layouts.tree_of(seed)
        layouts.write_images(tmp_path / split, tree, seed)
        (tmp_path / split / "_annotations.coco.json").write_text(json.dumps(tree))
    call("--data", tmp_path)
    assert "are in no annotation file" not in capfd.readouterr().out
    for path in list((tmp_path / "train").glob("*.png"))[:3]:
        path.with_name(f"more_{path.name}").write_bytes(path.read_bytes())
    call("--data", tmp_path)
    assert f"3 of 7 pictures in {tmp_path}/train are in no annotation file." in capfd.readouterr().out
