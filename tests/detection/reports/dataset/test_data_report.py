"""The data report, read back from its HTML, and the pictures of issues."""

import base64
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detection.datasets.issues import Issue
from detection.datasets.statistics import ASPECT_EDGES, OBJECTS_EDGES, SIDE_EDGES, SIZE_EDGES, SplitSummary
from detection.reports.dataset.charts import Histogram, plot_of
from detection.reports.dataset.page import LISTED_ISSUES, PICTURES_OF_A_KIND, write_report
from detection.reports.dataset.pictures import (
    LONGEST_SIDE,
    SAMPLES,
    IssuePicture,
    picture_of,
    sample_picture,
    spread_over_categories,
)
from detection.reports.dataset.sections import summary_sections
from detection.reports.dataset.summary import Choice, choices, meaning, verdict
from detection.reports.dataset.tables import bin_labels
from detection.reports.html.plot import HEIGHT, WIDTH
from detection.reports.html.table import Number
from pipelines import DEFAULT_CONFIG
from schemas.config.config_io import load_config
from schemas.config.issues import ISSUE_KINDS, Policy
from schemas.errors import DataError
from tests.html_page import HtmlPage

CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 1, "name": "dog"}, {"id": 90, "name": "emu"}, {"id": 7, "name": "yak"}]


TRAINED = [CATEGORIES[0]]  # which `two_splits` has in train


def annotation(category_id: int, width: float, height: float, **fields: Any) -> dict[str, Any]:
    return {"category_id": category_id, "bbox": [1, 2, width, height], **fields}


def two_splits() -> dict[str, SplitSummary]:
    train, evaluation = SplitSummary(), SplitSummary()
    cats = [annotation(3, 20, 40, segmentation=[[1, 2, 3, 4, 5, 6]]) for _ in range(1500)]
    train.add(cats, width=640, height=480, image_format="jpeg", color_mode="RGB")
    train.add([annotation(1, 200, 100, iscrowd=1)], width=300, height=700, image_format="png", color_mode="L")
    train.add([], width=640, height=480, image_format="jpeg", color_mode="RGB")
    both = [annotation(3, 50, 60), annotation(90, 70, 10, keypoints=[5, 5, 2])]
    evaluation.add(both, width=500, height=375, image_format="jpeg", color_mode="CMYK")
    return {"train": train, "eval": evaluation}


def issue(kind: str, policy: Policy, where: str = "train: a.jpg", message: str = "It is wrong.") -> Issue:
    return Issue(kind, policy, where, 12345, None, message)


def report(folder: Path, **arguments: Any) -> tuple[str, HtmlPage]:
    path = folder / "report.html"
    given: dict[str, Any] = {"title": "set", "splits": two_splits(), "categories": CATEGORIES, "issues": []}
    write_report(path, **(given | arguments))
    html = path.read_text(encoding="utf-8")
    return html, HtmlPage(html)


def encoded(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()


def picture(**arguments: Any) -> IssuePicture:
    return IssuePicture(issue(**{"kind": "box_empty", "policy": "drop"} | arguments), encoded(Image.new("RGB", (8, 6))))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> HtmlPage:
    return report(tmp_path_factory.mktemp("report"))[1]


def test_without_issues_the_verdict_and_the_splits_come_first(page: HtmlPage) -> None:
    lines = [line for line in page.texts[""].split("\n") if line.strip()]
    assert lines[2:7] == [
        "Yes, you can train on this: eval has annotations of categories that train has none of: emu; their AP "
        "will be 0.",
        "valid images 4",
        "valid annotations 1,503",
        "categories 4",
        "issues 0",
    ]
    assert page.header("splits")[1:4] == ["images", "annotations", "categories"]
    assert page.table("splits") == {
        "train": ["3", "1,501", "2", "1", "1,500", "0"],
        "eval": ["1", "2", "2", "0", "0", "1"],
        "all": ["4", "1,503", "3", "1", "1,500", "1"],
    }
    assert "The data set has 4 categories." in page.texts["splits"]
    assert "actions" not in page.texts
    assert "issues" not in page.texts


def test_splits_are_in_the_order_of_their_use(tmp_path: Path) -> None:
    splits = dict.fromkeys(["eval", "other", "test", "train"], two_splits()["train"])
    _, page = report(tmp_path, splits=splits)
    assert list(page.table("splits")) == ["train", "eval", "test", "other", "all"]
    assert page.header("categories")[2::2] == [f"{split}: annotations" for split in ("train", "eval", "test", "other")]


def test_each_category_has_its_annotations_and_images(page: HtmlPage) -> None:
    header = ["category", "id", "train: annotations", "train: images", "eval: annotations", "eval: images"]
    assert page.header("categories") == header
    assert list(page.table("categories").items()) == [
        ("cat", ["3", "1,500", "1", "1", "1"]),
        ("dog", ["1", "1", "1", "0", "0"]),
        ("emu", ["90", "0", "0", "1", "1"]),
        ("yak", ["7", "0", "0", "0", "0"]),
    ]
    assert page.table("categories-without-annotations") == {
        "all splits": ["1", "yak"],
        "train only": ["1", "emu"],
        "eval only": ["1", "dog"],
    }


def test_the_numbers_below_the_charts_are_the_summaries(page: HtmlPage) -> None:
    splits = two_splits().values()
    for section, index, name, edges, single in [
        ("annotations-per-image", 0, "objects_per_image", [], True),
        ("box-sizes", 0, "box_sizes", SIZE_EDGES, False),
        ("box-shapes", 0, "box_aspects", ASPECT_EDGES, False),
        ("image-sizes", 0, "widths", SIDE_EDGES, False),
        ("image-sizes", 1, "heights", SIDE_EDGES, False),
    ]:
        labels = [*map(str, range(100)), "100 and more"] if single else bin_labels(edges, single=False)
        columns = np.array([split.histogram(name) for split in splits])  # type: ignore[arg-type]
        shown = page.table(section, index)
        assert {label: shown.get(label, ["0", "0"]) for label in labels} == {
            label: [f"{count:,}" for count in column] for label, column in zip(labels, columns.T.tolist(), strict=True)
        }
        assert set(shown) <= set(labels)
    assert page.table("box-sizes", 1) == {"train": ["1,500", "0", "1"], "eval": ["1", "1", "0"]}
    assert page.table("image-sizes", 2) == {"train": ["300", "640", "480", "700"], "eval": ["500", "500", "375", "375"]}
    assert page.table("file-formats-and-colour-modes", 0) == {"jpeg": ["2", "1"], "png": ["1", "0"]}
    assert page.table("file-formats-and-colour-modes", 1) == {"RGB": ["2", "0"], "CMYK": ["0", "1"], "L": ["1", "0"]}


def test_charts_have_an_alternative_text(page: HtmlPage) -> None:
    charts = {str(given["id"]): str(given["aria-label"]) for tag, given in page.tags if given.get("class") == "plot"}
    sections = ["annotations-per-image-1", "box-sizes-1", "box-shapes-1", "image-sizes-1", "image-sizes-2"]
    assert list(charts) == sections
    assert "train: most often 22.6 to 32" in charts["box-sizes-1"]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    issues = [issue("box_empty", "drop", message="see http://example.org/x")]
    html, page = report(tmp_path, issues=issues, examples=[picture()])
    loading = {"src", "href", "srcset", "poster", "action", "data", "background"}
    values = [str(value) for _, given in page.tags for name, value in given.items() if name in loading]
    assert values
    assert all(value.startswith(("data:image/", "#")) for value in values)
    assert "url(" not in html
    assert "@import" not in html
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed"}


def test_issues_are_counted_by_kind_and_by_what_was_done(tmp_path: Path) -> None:
    issues = [issue("mask_box", "keep")] * 1002 + [issue("box_outside", "drop"), issue("entry", "fail")]
    issues += [issue("box_outside", "fix")] * 3 + [issue("image_leak", "keep")]
    html, page = report(tmp_path, splits={}, issues=issues)
    assert "No, you cannot train on this yet: 1 of 1,008 issues of 4 kinds stops a run." in page.texts[""]
    assert ("p", {"class": "verdict bad"}) in page.tags
    assert re.findall("<strong>(.*?)</strong>", html) == [
        "entry: 1 issue stops a run",
        "mask_box: 1,002 issues kept",
        "box_outside: 3 issues fixed",
        "image_leak: 1 issue kept",
        "box_outside: 1 issue dropped",
    ]
    assert "808 more are not listed here." in page.texts["issues"]
    assert "quarantine.jsonl lists all that were dropped." in page.texts["issues"]


@pytest.mark.parametrize(
    ("policy", "tone", "text"),
    [
        ("fail", "bad", "No, you cannot train on this yet: 1 of 1 issue of 1 kind stops a run."),
        ("drop", "warn", "Yes, you can train on this: 1 issue of 1 kind, 1 dropped."),
        ("keep", "warn", "Yes, you can train on this: 1 issue of 1 kind, 1 kept."),
    ],
)
def test_the_first_line_is_as_grave_as_the_worst_issue(policy: Policy, tone: str, text: str) -> None:
    assert verdict(two_splits(), {("mask_box", policy): 1}, TRAINED)[:2] == (tone, text)


def _split(*annotations: dict[str, Any]) -> SplitSummary:
    summary = SplitSummary()
    summary.add(annotations, width=100, height=100, image_format="png", color_mode="RGB")
    return summary


CROWD, OBJECT = annotation(3, 20, 40, iscrowd=1), annotation(3, 20, 40)


@pytest.mark.parametrize(
    ("splits", "categories", "tone", "text"),
    [
        ({"train": _split(CROWD), "eval": _split(OBJECT)}, TRAINED, "bad", "train has no annotation besides 1 crowds"),
        ({"train": _split(OBJECT), "eval": _split()}, TRAINED, "bad", "eval has no annotation ("),
        (
            {"train": _split(), "eval": _split()},
            [],
            "bad",
            "there is no category; train has no annotation; eval has no",
        ),
        ({"eval": _split(OBJECT)}, TRAINED, "bad", "there is no split train, only eval"),
        (
            {"Train": _split(OBJECT), "eval": _split(OBJECT)},
            TRAINED,
            "bad",
            "there is no split train, only Train, eval",
        ),
        ({"train": _split(OBJECT)}, TRAINED, "bad", "there is no split eval, only train"),
        ({"train": _split(CROWD, OBJECT), "eval": _split(CROWD, OBJECT)}, TRAINED, "good", "no issues"),
    ],
)
def test_there_is_something_to_learn_and_to_judge_by(
    splits: dict[str, SplitSummary], categories: Any, tone: str, text: str
) -> None:
    said = verdict(splits, {}, categories)
    assert said.tone == tone
    assert text in said.text


def many_issues() -> list[Issue]:
    """Image 5 has four issues, image 3 of train and of eval one each, the annotation file one."""
    return [
        Issue("box_empty", "drop", "train: 3.jpg", 3, 30, "m"),
        *(Issue("box_outside", "fail", "train: 5.jpg", 5, number, "m") for number in (51, 52, 53, 54)),
        Issue("mask_box", "keep", "eval: 3.jpg", 3, 51, "m"),
        Issue("entry", "fail", "a.json", None, 9, "m"),
    ]


def test_what_to_act_on_comes_before_statistics_pictures_and_the_list(tmp_path: Path) -> None:
    issues = many_issues()
    shown = [IssuePicture(one, picture().png) for one in issues]
    _, page = report(tmp_path, issues=issues, examples=shown, concerned={3: 2, 90: 5, 1: 5})
    sections = [given["id"] for tag, given in page.tags if tag == "section"]
    assert sections == [
        *("actions", "splits", "categories", "categories-without-annotations", "annotations-per-image"),
        *("box-sizes", "box-shapes", "file-formats-and-colour-modes", "image-sizes", "issue-pictures", "issues"),
    ]
    assert "5 of 7 issues of 4 kinds stop a run." in page.texts[""]
    assert page.tables["actions"][0][1:] == [
        ["train: 5.jpg", "5", "4", "box_outside", "51, 52, 53 and 1 more"],
        ["eval: 3.jpg", "3", "1", "mask_box", "51"],
        ["train: 3.jpg", "3", "1", "box_empty", "30"],
    ]
    assert page.tables["actions"][1] == [
        ["category", "id", "annotations"],
        ["dog", "1", "5"],
        ["emu", "90", "5"],
        ["cat", "3", "2"],
    ]
    ids = [given["id"] for _, given in page.tags if given.get("id")]
    links = [str(given["href"]).removeprefix("#") for tag, given in page.tags if tag == "a"]
    assert len(ids) == len(set(ids))
    assert set(links) <= set(ids)
    assert links[:3] == ["picture-box_outside-0", "picture-mask_box-0", "picture-box_empty-0"]


@pytest.mark.parametrize("kind", ISSUE_KINDS)
def test_every_kind_has_a_correction_and_flags_that_work(kind: str) -> None:
    assert ISSUE_KINDS[kind].remedy.endswith(".")
    assert not re.search("fix|drop", meaning(kind))
    for policy in ISSUE_KINDS[kind].allowed:
        offered = []
        for choice in choices(kind, policy):
            flag, _, assignment = choice.flag.partition(" ")
            config = load_config(DEFAULT_CONFIG, [assignment])
            offered.append(config.data.on_fault.of(kind))
            assert flag == "--set"
            assert choice.effect
        assert {*offered, policy, "fail", "repair"} == {*ISSUE_KINDS[kind].allowed, "fail", "repair"}
        assert policy not in offered


@pytest.mark.parametrize("choice", verdict({}, {("entry", "fail"): 1}, CATEGORIES).choices)
def test_flags_for_all_kinds_let_a_run_go_on(choice: Choice) -> None:
    config = load_config(DEFAULT_CONFIG, [choice.flag.removeprefix("--set ")])
    policies = {config.data.on_fault.of(kind) for kind in ISSUE_KINDS}
    assert "fail" not in policies


@pytest.mark.parametrize(
    ("splits", "counts", "text"),
    [
        ({}, {}, "No, you cannot train on this: the data set has no valid image (0 issues of 0 kinds)."),
        (
            {"train": two_splits()["train"], "eval": SplitSummary()},
            {("image_missing", "drop"): 3},
            "No, you cannot train on this: split eval has no valid image (3 issues of 1 kind).",
        ),
    ],
)
def test_without_images_nothing_can_be_trained(splits: Any, counts: Any, text: str) -> None:
    said = verdict(splits, counts, CATEGORIES)
    assert (said.tone, said.text) == ("bad", text)


def test_the_first_issues_are_listed(tmp_path: Path) -> None:
    issues = [Issue("box_empty", "drop", f"eval: {n}.jpg", n, 5000 + n, f"message {n}") for n in range(1, 251)]
    _, page = report(tmp_path, splits={}, issues=issues)
    (table,) = page.tables["issues"]
    assert len(table) == LISTED_ISSUES + 1
    assert table[0] == ["kind", "handling", "location", "image", "annotation", "message"]
    assert table[-1] == ["box_empty", "dropped", "eval: 200.jpg", "200", "5200", "message 200"]
    assert "50 more are not listed here." in page.texts["issues"]


def test_pictures_are_shown_by_kind(tmp_path: Path) -> None:
    examples = [picture(where=f"train: {n}.jpg") for n in range(6)] + [picture(kind="image_leak", policy="keep")]
    _, page = report(tmp_path, splits={}, issues=[example.issue for example in examples], examples=examples)
    shown = page.images["issue-pictures"]
    assert [image["alt"] for image in shown] == [
        "image_leak: train: a.jpg",
        *(f"box_empty: train: {n}.jpg" for n in range(PICTURES_OF_A_KIND)),
    ]
    content = base64.b64decode(str(shown[0]["src"]).removeprefix("data:image/png;base64,"))
    assert content == examples[0].png
    assert "train: 3.jpg (image 12345): It is wrong." in page.texts["issue-pictures"]


_HOSTILE = "<script>alert(\"1\")</script> $x_{$ & 'é' 犬 \x07 \ud800"


def test_what_comes_from_the_data_is_text(tmp_path: Path) -> None:
    summary = SplitSummary()
    summary.add([annotation(1, 5, 5)], width=9, height=9, image_format=_HOSTILE, color_mode=_HOSTILE)
    html, page = report(
        tmp_path,
        title=_HOSTILE,
        splits={_HOSTILE: summary, "b": summary},
        categories=[{"id": 1, "name": _HOSTILE}, {"id": 2, "name": _HOSTILE}],
        issues=[issue("entry", "drop", where=_HOSTILE, message=_HOSTILE)],
        examples=[picture(where=_HOSTILE, message=_HOSTILE)],
    )
    assert "<script" not in html
    assert all(tag != "script" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, given in page.tags for name in given)
    assert _HOSTILE.replace("\ud800", "?") in page.table("categories")


def test_a_thousand_categories(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    categories = [{"id": n, "name": f"class {n}"} for n in range(1, 1001)]
    splits = {name: SplitSummary() for name in ("train", "eval", "test")}
    for summary in splits.values():
        annotations = [annotation(int(n), 9, 9) for n in rng.zipf(1.3, 4000) if n <= 1000]
        summary.add(annotations, width=99, height=99, image_format="png", color_mode="RGB")
    html, page = report(tmp_path, splits=splits, categories=categories)
    table = page.table("categories")
    assert len(table) == 1000
    assert [int(table["class 7"][2 * n + 1].replace(",", "")) for n in range(3)] == [
        summary.instances[7] for summary in splits.values()
    ]
    totals = [sum(int(cell.replace(",", "")) for cell in row[1::2]) for row in table.values()]
    assert totals == sorted(totals, reverse=True)
    missing = page.table("categories-without-annotations")["all splits"]
    assert int(missing[0]) == totals.count(0) == len(missing[1].split(", "))
    assert len(html) < 1_000_000


def test_one_category_and_one_split(tmp_path: Path) -> None:
    summary = SplitSummary()
    summary.add([annotation(1, 9, 9)], width=99, height=99, image_format="png", color_mode="RGB")
    _, page = report(tmp_path, splits={"train": summary}, categories=[{"id": 1, "name": "raccoon"}])
    assert list(page.table("splits")) == ["train"]
    assert "The data set has 1 category." in page.texts["splits"]
    assert page.table("categories") == {"raccoon": ["1", "1", "1"]}
    assert "Every split has annotations of every category." in page.texts["categories-without-annotations"]


@pytest.mark.parametrize("splits", [{}, {"train": SplitSummary(), "eval": SplitSummary()}])
def test_a_report_of_issues_alone(tmp_path: Path, splits: dict[str, SplitSummary]) -> None:
    _, page = report(tmp_path, splits=splits, categories=[], issues=[issue("image_missing", "fail")])
    assert set(page.tables) == {"actions", "issues"} | ({"splits"} if splits else set())
    assert "No, you cannot train on this" in page.texts[""]
    assert page.images == {}


def test_equal_data_gives_an_equal_file(tmp_path: Path) -> None:
    assert report(tmp_path)[0] == report(tmp_path)[0]


def test_a_folder_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "report.html" / "x").mkdir(parents=True)
    with pytest.raises(DataError, match=r"report\.html: cannot write"):
        report(tmp_path)


def test_bars_have_the_height_of_the_fractions() -> None:
    counts = {"a": np.array([0, 1, 3, 0, 0]), "b": np.array([0, 0, 10, 10, 0])}
    plot = plot_of(Histogram(counts, [1, 2, 4, 8], {2.0: "2"}, "x", "images", {4.0: "limit"}))
    assert [tick.label for tick in plot.y_ticks] == ["0", "20", "40", "60", "80"]
    heights = {split: [bar.height for bar in bars] for split, bars in plot.bars.items()}
    assert heights == {"a": pytest.approx([HEIGHT * 25 / 80, HEIGHT * 75 / 80]), "b": [HEIGHT * 50 / 80] * 2}
    assert [bar.y + bar.height for bars in plot.bars.values() for bar in bars] == [HEIGHT] * 4
    # Five bins, each a fifth of the axis; the two splits share a bin without touching.
    assert [bar.x // (WIDTH / 5) for bars in plot.bars.values() for bar in bars] == [1, 2, 2, 3]
    assert plot.bars["a"][1].x + plot.bars["a"][1].width == pytest.approx(plot.bars["b"][0].x, abs=0.2)
    assert plot.x_ticks == [(2 / 5, "2")]
    assert plot.marks == [(3 / 5, "limit")]


def test_whole_numbers_are_in_the_middle_of_their_bins_and_labels_do_not_touch() -> None:
    for used, labels in [(8, "0 1 2 3 4 5 6 7 8 9"), (30, "0 3 6 9 12 15 18 21 24 27"), (101, "0 10 20 30 40")]:
        counts = np.zeros(101, np.int64)
        counts[:used] = 1
        plot = plot_of(Histogram({"a": counts}, OBJECTS_EDGES, {}, "x", "images", single=True))
        assert [tick.label for tick in plot.x_ticks][: len(labels.split())] == labels.split()
        assert plot.x_ticks[0].at == pytest.approx(0.5 / max(used, 10))
        assert all(later.at - tick.at > 0.09 for tick, later in itertools.pairwise(plot.x_ticks))


def test_bars_of_categories_are_logarithmic_where_counts_differ_much() -> None:
    def bars(*counts: int) -> tuple[str, list[float | None]]:
        summary = SplitSummary(images=1)
        summary.instances.update(dict(enumerate(counts)))
        names = [{"id": number, "name": "x"} for number in range(len(counts))]
        section = summary_sections({"train": summary}, names)[0]
        return section.text, [row[2].bar for row in section.tables[0].rows if isinstance(row[2], Number)]

    text, lengths = bars(100, 40, 10, 0)
    assert "logarithmic" not in text
    assert lengths == pytest.approx([1, 0.4, 0.1, 0])
    text, lengths = bars(2**20 - 1, 2**5 - 1, 1, 0)
    assert "Bars are logarithmic." in text
    assert lengths == pytest.approx([1, 0.25, 0.05, 0])


def drawn(data: bytes, bbox: Any = None, max_pixels: int = 10**7) -> np.ndarray | None:
    rendered = picture_of(data, issue("box_outside", "fix"), bbox, max_pixels=max_pixels)
    return None if rendered is None else np.asarray(Image.open(io.BytesIO(rendered.png)).convert("RGB")).astype(int)


def _redness(pixels: np.ndarray) -> np.ndarray:
    return pixels[..., 0] - pixels[..., 1:].max(-1)


def test_a_picture_is_small_and_has_its_box_in_place() -> None:
    pixels = drawn(encoded(Image.new("RGB", (1280, 640), (90, 90, 90)), "JPEG"), [320, 64, 640, 128])
    assert pixels is not None
    assert pixels.shape == (160, LONGEST_SIDE, 3)
    rows, columns = np.nonzero(_redness(pixels) > 10)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == pytest.approx((16, 47, 80, 239), abs=1)


def test_a_box_beyond_the_image_is_shown_on_grey() -> None:
    pixels = drawn(encoded(Image.new("RGB", (100, 50), (0, 0, 255))), [-20, 10, 40, 60])
    assert pixels is not None
    assert pixels.shape == (70, 120, 3)
    assert pixels[2, 2].tolist() == pytest.approx([128] * 3, abs=4)
    assert pixels[5, 60].tolist() == pytest.approx([0, 0, 255], abs=4)
    assert _redness(pixels)[40, :2].max() > 50


def test_a_box_far_away_does_not_hide_the_image() -> None:
    pixels = drawn(encoded(Image.new("RGB", (100, 50), (0, 0, 255))), [5000, 9000, 1e300, 4])
    assert pixels is not None
    assert pixels.shape == (75, 150, 3)


@pytest.mark.parametrize("bbox", [None, [], [1, 2, 3], [1, 2, 3, float("nan")], ["a", 1, 1, 1], [10**400, 1, 1, 1], 5])
def test_an_impossible_box_is_not_drawn(bbox: Any) -> None:
    pixels = drawn(encoded(Image.new("RGB", (30, 20), (9, 9, 9))), bbox)
    assert pixels is not None
    assert pixels.shape == (20, 30, 3)
    assert _redness(pixels).max() < 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16", "I", "F"])
def test_every_colour_mode_is_shown(mode: str) -> None:
    values = np.full((10, 20), 255 if mode == "1" else 200, np.uint8)
    if mode == "I;16":
        image = Image.fromarray(values.astype(np.uint16) << 8)
    elif mode == "I":
        image = Image.fromarray(values.astype(np.int32) << 8)
    else:
        image = Image.fromarray(values).convert(mode)
    pixels = drawn(encoded(image, "TIFF"))
    assert pixels is not None
    assert abs(pixels - int(values[0, 0])).max() <= 3


def test_extreme_shapes_keep_a_pixel() -> None:
    pixels = drawn(encoded(Image.new("L", (5000, 1))))
    assert pixels is not None
    assert pixels.shape == (1, LONGEST_SIDE, 3)


def test_too_large_images_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.new("L", (101, 100)))
    assert drawn(data, max_pixels=10_100) is not None
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    assert drawn(data, max_pixels=10_099) is None


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"no image", encoded(Image.effect_noise((64, 64), 50))[:500]])
def test_what_cannot_be_decoded_has_no_picture(data: bytes) -> None:
    assert drawn(data) is None


def test_nothing_awkward_raises(shared_data: Path) -> None:
    folder = shared_data / "nasty_images"
    names = [entry["file"] for entry in json.loads((folder / "manifest.json").read_text())["files"]]
    rendered = [name for name in names if drawn((folder / name).read_bytes(), [1, 1, 5, 5]) is not None]
    assert 40 < len(rendered) < len(names)
    assert "truncated.png" not in rendered
    assert "empty.jpg" not in rendered


def grey(width: int, height: int) -> bytes:
    return encoded(Image.new("RGB", (width, height), (90, 90, 90)))


def test_a_sample_shows_boxes_and_masks_where_they_are() -> None:
    """In an image of 1280 x 640 pixels, drawn at a quarter: a box with a mask on the left, one without on the right."""
    polygon = [80, 80, 400, 80, 400, 560, 80, 560]
    annotations = [
        {"category_id": 3, "bbox": [40, 40, 400, 560], "segmentation": [polygon]},
        {"category_id": 1, "bbox": [800, 200, 300, 300]},
    ]
    categories = {3: {"name": "cat"}, 1: {"name": "dog"}}
    sample = sample_picture(grey(1280, 640), annotations, categories, caption="train: a.png")
    with Image.open(io.BytesIO(sample.jpeg)) as image:
        assert (image.format, image.size) == ("JPEG", (LONGEST_SIDE, LONGEST_SIDE // 2))
        pixels = np.asarray(image.convert("RGB")).astype(int)

    def differs(x: int, y: int) -> int:
        return int(np.abs(pixels[y // 4, x // 4] - 90).max())

    assert differs(240, 320) > 2 * differs(950, 400)  # a mask covers more than the fill of a box
    assert differs(800, 350) > 40  # the edge of the second box
    assert differs(620, 320) < 12  # between the boxes
    assert differs(1200, 600) < 12
    assert len(sample.jpeg) < 40_000


def test_a_small_image_is_enlarged_so_that_its_tags_have_the_size_of_others() -> None:
    annotations = [{"category_id": 3, "bbox": [16, 8, 32, 16]}]
    sample = sample_picture(grey(64, 32), annotations, {3: {"name": ""}}, caption="")
    with Image.open(io.BytesIO(sample.jpeg)) as image:
        assert image.size == (LONGEST_SIDE, LONGEST_SIDE // 2)
        pixels = np.asarray(image.convert("RGB")).astype(int)
    scale = LONGEST_SIDE // 64
    assert np.abs(pixels[16 * scale, 16 * scale] - 90).max() > 40, "the left edge of the box"
    assert np.abs(pixels[16 * scale, 10 * scale] - 90).max() < 12, "left of the box"


def test_a_sample_shows_the_skeletons_of_keypoints() -> None:
    """In an image of 1280 x 640 pixels, drawn at a quarter; the third point is hidden."""
    points = [200, 100, 2, 1000, 500, 1, 1000, 100, 0]
    annotations = [{"category_id": 3, "bbox": [0, 0, 8, 8], "keypoints": points}, {"category_id": 1, "bbox": [0] * 4}]
    categories: dict[int, dict[str, Any]] = {3: {"name": "", "skeleton": [[1, 2], [1, 3]]}, 1: {"name": ""}}
    sample = sample_picture(grey(1280, 640), annotations, categories, caption="")
    with Image.open(io.BytesIO(sample.jpeg)) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    red, green, _ = pixels[300 // 4, 600 // 4] - 90
    assert red > 60 > green, "magenta, which JPEG mixes with the grey"
    assert np.abs(pixels[100 // 4, 600 // 4] - 90).max() < 12


def test_samples_show_every_category_before_one_again() -> None:
    images = [(number, [1]) for number in range(40)] + [(50, [2]), (51, [1, 3]), (52, [2])]
    chosen = spread_over_categories(images)
    assert chosen[:3] == [0, 50, 51]
    assert {*chosen} >= {50, 51, 52}
    assert len(chosen) == len({*chosen}) == SAMPLES
    assert spread_over_categories(images[:2]) == [0, 1]
    assert spread_over_categories([]) == []
