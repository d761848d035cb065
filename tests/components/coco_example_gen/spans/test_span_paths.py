"""Which span a path means: TFX's rules, checked against TFX's own functions."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.coco_example_gen.spans.locate import locate
from components.coco_example_gen.spans.span_paths import (
    NO_SPAN,
    SpanVersion,
    fill,
    find_span,
    locate_given,
    locate_root,
    placeholders,
)
from detection.datasets.splits import Division, SplitFiles
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.components.coco_example_gen.data_set import write_data_set


def _touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


@pytest.mark.parametrize(
    ("files", "pattern", "expected"),
    [
        (["s-1/a", "s-10/a", "s-9/a"], "s-{SPAN}/a", (10, None)),
        (["s-1/a", "s-2/a", "s-3/b"], "s-{SPAN}/a", (2, None)),
        (["s-001/a", "s-012/a"], "s-{SPAN:3}/a", (12, None)),
        (["1/v7/a", "2/v1/a", "2/v10/a", "2/v9/a"], "{SPAN}/v{VERSION}/a", (2, 10)),
        (["1/v02/a", "1/v11/a"], "{SPAN}/v{VERSION:2}/a", (1, 11)),
        (["2026-11-20/a", "2026-02-28/a"], "{YYYY}-{MM}-{DD}/a", (20777, None)),
        (["2026/11/20/a", "2026/12/02/a"], "{YYYY}/{MM}/{DD}/a", (20789, None)),
        (["20.11.2026/a"], "{DD}.{MM}.{YYYY}/a", (20777, None)),
        (["19700103-5/a", "19700102-6/a"], "{YYYY}{MM}{DD}-{VERSION}/a", (2, 5)),
        (["4-2/a"], "{SPAN}-{VERSION}/a", (4, 2)),
        (["0/a"], "{SPAN}/a", (0, None)),
        (["x[1]{y}/3/a", "x1/4/a"], "x[1]{y}/{SPAN}/a", (3, None)),
        (["s/a"], "s/a", (0, None)),
    ],
)
def test_the_newest_counts(tmp_path: Path, files: list[str], pattern: str, expected: tuple[int, int | None]) -> None:
    _touch(tmp_path, *files)
    path = str(tmp_path / pattern)
    newest = find_span([path])
    assert newest == expected
    assert Path(fill(path, newest)).is_file()


def test_one_can_be_asked_for(tmp_path: Path) -> None:
    _touch(tmp_path, "1/1/a", "1/3/a", "2/1/a", "2/2/a", "20/odd/a")
    path = str(tmp_path / "{SPAN}/{VERSION}/a")
    assert find_span([path], span=1) == (1, 3)
    assert find_span([path], span=1, version=1) == (1, 1)
    assert find_span([path], span=2, version=1) == (2, 1)
    with pytest.raises(DataError, match=re.escape(f"{path}: no span 3 found, only 1, 2. Check data.span")):
        find_span([path], span=3)
    with pytest.raises(DataError, match=r"span 2 has no version 5, only 1, 2\. Check data\.version"):
        find_span([path], span=2, version=5)
    _touch(tmp_path, *(f"{span}/1/a" for span in range(3, 15)))
    with pytest.raises(DataError, match=r"only \.\.\., 5, 6, 7, 8, 9, 10, 11, 12, 13, 14\. "):
        find_span([path], span=99)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{SPAN}/{SPAN}", "a duplicate placeholder"),
        ("{SPAN}/{SPAN:2}", "a duplicate placeholder"),
        ("{VERSION}/x", "Write {SPAN}, or {YYYY}, {MM} and {DD}, too"),
        ("{YYYY}-{MM}", "write all of {YYYY}, {MM} and {DD}"),
        ("{YYYY}-{MM}-{DD}-{SPAN}", "or {SPAN} in their place"),
        ("{SPAN:x}", "{SPAN:x}: write a number of digits"),
        ("{SPAN:0}", "{SPAN:0}: write a number of digits"),
        ("{SPAN}/{VERSION:}", "{VERSION:}: write a number of digits"),
        ("{YYYY:4}-{MM}-{DD}", "dates take none"),
    ],
)
def test_patterns_that_name_no_span_are_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        placeholders(path)


@pytest.mark.parametrize(
    ("files", "pattern", "message"),
    [
        ([], "{SPAN}/a", "{SPAN}/a: no span found"),
        (["1/a", "old/a"], "{SPAN}/a", "old/a: is found for "),
        (["2026-11-20/a", "2026-02-30/a"], "{YYYY}-{MM}-{DD}/a", "2026-02-30/a: is found for "),
        (["1/a", "1000/a"], "{SPAN:3}/a", "1/a: is found for "),
        (["1/a", "1/b"], "1/{SPAN}", "1/a: is found for "),
        (["1/v1/a", "1/v/a"], "{SPAN}/v{VERSION}/a", "v/a: is found for "),
    ],
)
def test_what_is_no_span_is_named(tmp_path: Path, files: list[str], pattern: str, message: str) -> None:
    _touch(tmp_path, *files)
    with pytest.raises(DataError, match=re.escape(message)):
        find_span([str(tmp_path / pattern)])


def test_zeros_in_front_need_a_width(tmp_path: Path) -> None:
    _touch(tmp_path, "span-07/a")
    with pytest.raises(ConfigError, match=r"span-07/a: zero-padded number.* as in \{SPAN:3\}"):
        find_span([str(tmp_path / "span-{SPAN}/a")])


def test_all_patterns_have_the_same_newest_span(tmp_path: Path) -> None:
    _touch(tmp_path, "1/a", "2/a", "1/b")
    paths = [str(tmp_path / "{SPAN}/a"), str(tmp_path / "{SPAN}/b")]
    with pytest.raises(DataError, match=r"newest of .*/a is span 2, of .*/b it is span 1: all splits need the same"):
        find_span(paths)
    assert find_span(paths, span=1) == (1, None)
    _touch(tmp_path, "2/b")
    assert find_span(paths) == (2, None)
    with pytest.raises(ConfigError, match="write the same placeholders for all splits"):
        find_span([paths[0], str(tmp_path / "1/b")])


def test_what_is_asked_for_needs_its_placeholder() -> None:
    with pytest.raises(ConfigError, match=r"data\.span = 3, but /data has no \{SPAN\} and no date"):
        find_span(["/data"], span=3)
    with pytest.raises(ConfigError, match=r"data\.version = 3, but /d/\{SPAN\} has no \{VERSION\}"):
        find_span(["/d/{SPAN}"], version=3)


def test_filling() -> None:
    assert fill("{SPAN}/{SPAN:4}/{VERSION}/{DD}.{MM}.{YYYY}", SpanVersion(1, 12)) == "1/0001/12/02.01.1970"
    assert fill("{SPAN}/{VERSION:2}", SpanVersion(1, None)) == "1/{VERSION:2}"
    with pytest.raises(ConfigError, match=r"\{SPAN:2\} has no room for 100"):
        fill("/d/{SPAN:2}", SpanVersion(100, None))


def test_a_span_is_named_as_its_path() -> None:
    at = SpanVersion(20778, 2)
    assert at.name_in("data/{YYYY}/{MM}/{DD}/{VERSION}") == "2026-11-21, version 2"
    assert at.name_in("data/{SPAN}/{VERSION}") == "span 20778, version 2"
    assert SpanVersion(2**31 - 1, None).name_in("{YYYY}{MM}{DD}") == f"span {2**31 - 1}", "beyond the calendar"


def test_missing_dates_are_named(tmp_path: Path) -> None:
    write_data_set(tmp_path / "2026-11-21")
    with pytest.raises(DataError, match=r"no 2026-11-20 found, only 2026-11-21\."):
        locate_root(str(tmp_path / "{YYYY}-{MM}-{DD}"), span=20777)


def test_a_root_is_the_folder_of_the_newest_span_that_has_annotations(tmp_path: Path) -> None:
    for day in (1, 2):
        write_data_set(tmp_path / f"2026-11-0{day}")
    _touch(tmp_path, "2026-11-03/images/1.png", "2026-11-03/readme.txt")
    located = locate_root(str(tmp_path / "{YYYY}-{MM}-{DD}"))
    assert located.newest == (20759, None)
    assert located.files["eval"].annotations == str(tmp_path / "2026-11-02/annotations/instances_val.json")
    assert located.files["train"].annotations == str(tmp_path / "2026-11-02/annotations/instances_train.json")
    earlier = locate_root(str(tmp_path / "{YYYY}-{MM}-{DD}"), span=20758)
    assert earlier.files["train"].images == str(tmp_path / "2026-11-01/images")
    _touch(tmp_path, "2026-11-04/notes.json")
    with pytest.raises(DataError, match=r"2026-11-04: no data set recognised"):
        locate_root(str(tmp_path / "{YYYY}-{MM}-{DD}"))


def test_a_root_without_placeholders_stays_what_it_was(tmp_path: Path) -> None:
    write_data_set(tmp_path)
    located = locate_root(str(tmp_path))
    assert located.newest == NO_SPAN
    assert located.files["train"].annotations == str(tmp_path / "annotations/instances_train.json")


def test_specified_splits_have_placeholders(tmp_path: Path) -> None:
    _touch(tmp_path, *(f"7/{version}/{name}.json" for version in (1, 2) for name in ("instances_train", "valid")))
    _touch(tmp_path, "7/2/person_keypoints_train.json", "7/photos/1.jpg")
    sources = {
        "train": (str(tmp_path / "{SPAN}/{VERSION}/instances_train.json"), str(tmp_path / "{SPAN}/photos")),
        "valid": (str(tmp_path / "{SPAN}/{VERSION}/valid.json"), str(tmp_path)),
    }
    located = locate_given(sources)
    assert located.newest == (7, 2)
    assert located.files["train"] == SplitFiles(
        str(tmp_path / "7/2/instances_train.json"),
        str(tmp_path / "7/photos"),
        str(tmp_path / "7/2/person_keypoints_train.json"),
    )
    assert located.files["eval"] == SplitFiles(str(tmp_path / "7/2/valid.json"), str(tmp_path))
    assert locate_given(sources, version=1).files["train"].keypoints is None
    sources["train"] = (str(tmp_path / "7/1/instances_train.json"), str(tmp_path / "{SPAN}/photos"))
    with pytest.raises(ConfigError, match=r"data\.splits\.train\.images = .* has a placeholder that the annotations"):
        locate_given(sources)


def test_the_year_in_a_name_of_coco_is_a_placeholder_as_well(tmp_path: Path) -> None:
    _touch(tmp_path, *(f"{name}_train2017-11-02.json" for name in ("instances", "person_keypoints")), "images/1.jpg")
    pattern = str(tmp_path / "instances_train{YYYY}-{MM}-{DD}.json")
    located = locate_given({"train": (pattern, str(tmp_path / "images"))}, division=Division(eval_fraction=0.5))
    assert set(located.files) == {"train", "eval"}
    assert located.files["train"].keypoints == str(tmp_path / "person_keypoints_train2017-11-02.json")


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_tfx_finds_the_same(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    from tfx.components.example_gen import input_processor
    from tfx.proto import example_gen_pb2, range_config_pb2

    root = tmp_path_factory.mktemp("spans")
    pattern = data.draw(st.sampled_from(["s{SPAN}/v{VERSION}/{n}", "{SPAN:3}-{n}", "{YYYY}/{MM}{DD}/{VERSION:2}/{n}"]))
    patterns = [pattern.replace("{n}", name) for name in ("a.json", "b.json")]
    number = st.integers(0, 30)
    there = [
        SpanVersion(span, version if "VERSION" in pattern else None)
        for span, version in data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=8))
    ]
    for at in there:
        for name in data.draw(st.sampled_from([patterns, patterns, patterns, patterns[:1]])):
            _touch(root, fill(name, at))
    span = data.draw(st.none() | number)

    def ours() -> Any:
        return find_span([str(root / name) for name in patterns], span=span)

    def theirs() -> Any:
        splits = [example_gen_pb2.Input.Split(name=name, pattern=name) for name in patterns]
        config = None
        if span is not None:
            one = range_config_pb2.StaticRange(start_span_number=span, end_span_number=span)
            config = range_config_pb2.RangeConfig(static_range=one)
        processor = input_processor.FileBasedInputProcessor(str(root), splits, config)
        newest = processor.resolve_span_and_version()
        for name in patterns:
            assert processor.get_pattern_for_span_version(name, *newest) == fill(name, SpanVersion(*newest))
        return newest

    def outcome(resolve: Any) -> Any:
        try:
            return resolve()
        except (ValueError, DataError):
            return "refused"

    assert outcome(ours) == outcome(theirs)


def test_the_span_that_is_read_is_said_once_and_one_in_the_future_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cocoflow.data")
    for day in ("2024-05-06", "2062-05-06"):
        (tmp_path / day / "annotations").mkdir(parents=True)
        (tmp_path / day / "train").mkdir()
        (tmp_path / day / "annotations/instances_train.json").write_text('{"images": [], "annotations": []}')
        config = load_config(None, [f"data.root='{tmp_path}/{{YYYY}}-{{MM}}-{{DD}}'"])
        locate(config.data)
        locate(config.data)
    source = f"{tmp_path}/{{YYYY}}-{{MM}}-{{DD}}"
    assert caplog.messages == [
        f"reading 2024-05-06 of {source}",
        f"reading 2062-05-06 of {source}",
        "2062-05-06 lies in the future, and counts as the newest span: rename the folder if its date is a mistake, or "
        "set data.span",
    ]
