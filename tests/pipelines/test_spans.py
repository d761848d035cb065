"""Data that arrives span by span: what the configuration says, what a run reads and trains on."""

import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen.spans.dataset_files import files_of
from components.history.queries import History, window_of
from components.history.records import DataRead, Output
from components.history.store import read_executions
from schemas.config.config import DataConfig
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.components.coco_example_gen.data_set import write_data_set


def test_training_alone_reads_the_newest_span_or_the_one_asked_for(tmp_path: Path) -> None:
    for day in (1, 2):
        write_data_set(tmp_path / f"2026-11-0{day}")
    root = str(tmp_path / "{YYYY}-{MM}-{DD}")

    def annotations(**keys: Any) -> str:
        return files_of(DataConfig(root=root, **keys), "train")["train"].annotations

    assert annotations() == str(tmp_path / "2026-11-02/annotations/instances_train.json")
    assert annotations(span=20758) == str(tmp_path / "2026-11-01/annotations/instances_train.json")
    there = "only 2026-11-01, 2026-11-02. Check data.span"
    with pytest.raises(DataError, match=re.escape(f"{root}: no 1970-01-06 found, {there}")):
        annotations(span=5)
    with pytest.raises(ConfigError, match=r"data\.version = 1, but .* has no \{VERSION\}"):
        annotations(version=1)
    splits = {
        name: {"annotations": f"{root}/annotations/instances_{name}.json", "images": f"{root}/images"}
        for name in ("train", "val")
    }
    given = files_of(DataConfig.model_validate({"splits": splits}), "train", "eval")
    assert given == {name: replace(split, root="", notes=()) for name, split in files_of(DataConfig(root=root)).items()}


def test_a_window_needs_spans(tmp_path: Path) -> None:
    write_data_set(tmp_path / "0")
    with pytest.raises(ConfigError, match=r"data\.window = 2, but the data's paths have no \{SPAN\} and no date"):
        files_of(DataConfig(root=str(tmp_path / "0"), window=2))
    assert files_of(DataConfig(root=str(tmp_path / "{SPAN}"), window=2))


class Runs:
    """A pipeline that is run again and again on one store, and what its runs left there."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, *, window: int, **arguments: Any) -> dict[str, str]:
        """Runs it; the state of each component, and the spans that were trained on."""
        from tests.pipelines.span_stubs import make_nodes
        from tests.pipelines.stub_runs import run_nodes

        states = run_nodes(make_nodes(str(self.root), window=window, **arguments), self.root)
        return {"example_gen": states["CocoExampleGen"], "trainer": states["DetectionTrainer"], "spans": self._spans()}

    def _spans(self) -> str:
        """The spans of the newest window, by what its record says."""
        window = read_executions(str(self.root), "training_window")[-1].output("examples")
        listed = json.loads(Path(window.uri, "resolved.json").read_text())["artifacts"]
        trained = [
            [one["uri"] for one in listed] == list(model.examples) for model in History(str(self.root)).models.values()
        ]
        assert any(trained)
        return ",".join(str(one["properties"]["span"]) for one in listed)

    def examples(self) -> list[Output]:
        made = {one.output("examples").uri: one for one in read_executions(str(self.root), "CocoExampleGen")}
        return [one.output("examples") for one in made.values()]


def _train_ids(examples: Any) -> list[int]:
    import tensorflow as tf

    shards = [str(path) for path in Path(examples.uri, "Split-train").iterdir()]
    parsed = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(shards)]
    return sorted(int(one.features.feature["image/source_id"].bytes_list.value[0]) for one in parsed)


NEW = {"example_gen": "done", "trainer": "done"}
SAME = {"example_gen": "reused", "trainer": "reused"}


@pytest.mark.slow
def test_each_day_trains_on_the_window_that_ends_with_it(tmp_path: Path) -> None:
    runs, root = Runs(tmp_path), str(tmp_path / "data/{SPAN:2}")

    write_data_set(tmp_path / "data/01", images=1)
    assert runs(window=2, root=root) == {**NEW, "spans": "1"}
    write_data_set(tmp_path / "data/02", images=2)
    assert runs(window=2, root=root) == {**NEW, "spans": "2,1"}
    assert runs(window=2, root=root) == {**SAME, "spans": "2,1"}
    write_data_set(tmp_path / "data/03", images=3)
    assert runs(window=2, root=root) == {**NEW, "spans": "3,2"}
    assert runs(window=2, root=root, span=3) == {**SAME, "spans": "3,2"}, "the newest, specified"
    assert runs(window=2, root=root, span=2) == {**SAME, "spans": "2,1"}, "a window ends with the span read"
    assert [one.properties["span"] for one in runs.examples()] == [1, 2, 3]
    assert list(map(_train_ids, runs.examples())) == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.slow
def test_versions_and_what_is_recorded_of_them(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    root = str(tmp_path / "{YYYY}{MM}{DD}/v{VERSION}")
    write_data_set(tmp_path / "19700108/v1", images=1)
    write_data_set(tmp_path / "19700109/v9", images=2)
    write_data_set(tmp_path / "19700109/v10", images=3)
    sources = {
        name: {"annotations": f"{root}/annotations/instances_{name}.json", "images": f"{root}/images"}
        for name in ("train", "val")
    }

    assert runs(window=3, root=root, version=9) == {**NEW, "spans": "8"}
    assert runs(window=3, root=root) == {**NEW, "spans": "8"}
    assert runs(window=3, root=root, span=8, version=10) == {**SAME, "spans": "8"}
    assert runs(window=3, root=root, span=7) == {**NEW, "spans": "7"}
    # One of the two versions of day 8, the newest day, and not twice.
    write_data_set(tmp_path / "19700110/v1", images=4)
    assert runs(window=3, root=root) == {**NEW, "spans": "9,8,7"}

    recorded = [
        {key: value for key, value in one.properties.items() if key in ("span", "version")} for one in runs.examples()
    ]
    assert recorded == [
        {"span": 8, "version": 9},
        {"span": 8, "version": 10},
        {"span": 7, "version": 1},
        {"span": 9, "version": 1},
    ]
    assert list(map(_train_ids, runs.examples())) == [[1, 2], [1, 2, 3], [1], [1, 2, 3, 4]]
    fingerprints = {one.properties["input_fingerprint"] for one in runs.examples()}
    assert len(fingerprints) == 4
    # Data that was corrected replaces what was read before.
    annotations = tmp_path / "19700109/v10/annotations/instances_train.json"
    annotations.write_text(annotations.read_text() + "\n")
    assert runs(window=3, root=root, span=8) == {**NEW, "spans": "8,7"}
    assert runs(window=3, root=root) == {"example_gen": "reused", "trainer": "done", "spans": "9,8,7"}
    # The same files, but not the data that the window is one of.
    assert runs(window=3, splits=sources) == {**NEW, "spans": "9"}
    assert runs(window=3, root=str(tmp_path / "19700110/v1")) == {**NEW, "spans": "0"}


@pytest.mark.slow
def test_statistics_are_made_with_the_schema(tmp_path: Path) -> None:
    from pipelines.pipeline import create_pipeline

    write_data_set(tmp_path / "data")
    config = load_config(None, [f"data.root={tmp_path}/data", f"run.root={tmp_path}/run"])
    [statistics_gen] = [node for node in create_pipeline(config).components if node.id == "StatisticsGen"]
    assert statistics_gen.inputs["schema"].producer_component_id == "RecordSchemaGen"


@pytest.mark.slow
def test_the_pipeline_takes_window_and_beam_options(tmp_path: Path) -> None:
    from pipelines.pipeline import create_pipeline

    write_data_set(tmp_path / "data/1")
    assignments = [f"data.root={tmp_path}/data/{{SPAN}}", f"run.root={tmp_path}/run"]

    def inputs(*more: str) -> tuple[dict[str, Any], list[str]]:
        pipeline = create_pipeline(load_config(None, [*assignments, *more]))
        producers = {
            node.id: node.inputs["examples"].producer_component_id
            for node in pipeline.components
            if node.id in ("StatisticsGen", "DetectionTrainer", "CocoEvaluator")
        }
        return producers, pipeline.beam_pipeline_args

    whole = {"StatisticsGen": "CocoExampleGen", "DetectionTrainer": "CocoExampleGen", "CocoEvaluator": "CocoExampleGen"}
    assert inputs() == (whole, [])
    options = ["--runner=FlinkRunner", "--flink_master=host:8081"]
    producers, passed = inputs("data.window=2", f"run.beam_args={json.dumps(options)}")
    assert producers == {**whole, "DetectionTrainer": "training_window"}
    assert passed == options


def test_the_window_is_counted_in_span_numbers() -> None:
    def examples(number: int, span: int, version: int | None = None, source: str = "a") -> DataRead:
        return DataRead(source, span, version, examples=str(number))

    known = [examples(1, 3, 2), examples(2, 3, 1), examples(3, 7), examples(4, 5), examples(5, 5), examples(6, 9)]
    others = [examples(7, 8, source="b")]

    def resolved(spans: int, newest: int) -> list[int]:
        own = next(one for one in known if one.examples == str(newest))
        return [int(str(one.examples)) for one in window_of([*known, *others], own, spans=spans)]

    assert resolved(1, newest=3) == [3]
    assert resolved(2, newest=3) == [3], "span 6 was never there"
    assert resolved(3, newest=3) == [3, 5], "of span 5, what was read last"
    assert resolved(5, newest=3) == [3, 5, 1], "of span 3, the newest version"
    assert resolved(3, newest=4) == [4, 1], "the run's own examples, whatever was read later"
    assert resolved(2, newest=2) == [2]
    assert resolved(100, newest=6) == [6, 3, 5, 1]


@pytest.mark.slow
def test_spans_of_the_window_that_no_run_has_read_are_told(tmp_path: Path) -> None:
    from components.selection import passed_over

    for day in ("2026-11-18", "2026-11-20", "2026-11-22", "2026-11-24", "2026-11-25"):
        write_data_set(tmp_path / day, images=1)
    (tmp_path / "2026-11-23").mkdir()  # nothing has arrived yet
    root = f"{tmp_path}/{{YYYY}}-{{MM}}-{{DD}}"
    files = json.dumps({"eval": f"{root}/annotations/instances_val.json", "train": f"{root}/annotations/*_train.json"})
    last = (date(2026, 11, 24) - date(1970, 1, 1)).days

    def said(read: list[int], source: str = root, spans: int = 6) -> str:
        return passed_over(read, DataRead(source, last), spans=spans)

    assert said([last]).startswith("2026-11-22, 2026-11-20 of the window: there, but no run has read it")
    assert said([last]).endswith("the first with --set data.span=2026-11-20")
    assert said([last, last - 2]).startswith("2026-11-20 of the window")
    assert said([last], spans=2) == said([last, last - 2, last - 4]) == ""
    assert said([last], files.replace("*_train", "instances_train")) == said([last])


@pytest.mark.slow
def test_examples_that_are_damaged_are_left_out_of_the_window(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs, root = Runs(tmp_path), str(tmp_path / "data/{SPAN}")
    for span in (1, 2):
        write_data_set(tmp_path / f"data/{span}", images=span)
        runs(window=2, root=root)
    gone = Path(runs.examples()[0].uri, "dataset.json")
    gone.unlink()
    assert runs(window=2, root=root) == {"example_gen": "reused", "trainer": "done", "spans": "2"}
    assert f"{gone} is missing, so these examples are left out" in caplog.text
