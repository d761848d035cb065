"""Data that arrives span by span: what the configuration says, what a run reads and trains on."""

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen.spans.dataset_files import files_of
from schemas.config.config import DataConfig
from schemas.config.config_io import from_yaml, load_config, to_yaml
from schemas.errors import ConfigError, DataError
from tests.components.coco_example_gen.data_set import write_data_set


@pytest.mark.parametrize("said", ["2026-11-20", "20777"])
def test_a_span_is_a_number_or_a_date(said: str) -> None:
    config = load_config(None, [f"data.span={said}"])
    assert config.data.span == 20777
    assert from_yaml(to_yaml(config)) == config


@pytest.mark.parametrize("said", ["-1", "yesterday", "1969-12-31", "2147483648"])
def test_a_span_that_is_none_is_refused(said: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.span = "):
        load_config(None, [f"data.span={said}"])


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
    assert given == files_of(DataConfig(root=root))


def test_a_window_needs_spans(tmp_path: Path) -> None:
    write_data_set(tmp_path / "0")
    with pytest.raises(ConfigError, match=r"data\.window = 2, but the data's paths have no \{SPAN\} and no date"):
        files_of(DataConfig(root=str(tmp_path / "0"), window=2))
    assert files_of(DataConfig(root=str(tmp_path / "{SPAN}"), window=2))


class Runs:
    """A pipeline that is run again and again on one store, and what its runs left there."""

    def __init__(self, root: Path, runner: str) -> None:
        self.root = root
        self.runner = runner

    def __call__(self, *, window: int, **arguments: Any) -> dict[str, str]:
        """Runs it; the last state of each component, and the spans that were trained on."""
        from ml_metadata.proto import metadata_store_pb2 as mlmd

        from pipelines.runners.local import RUNNERS
        from tests.pipelines.span_stubs import create_pipeline

        RUNNERS[self.runner](create_pipeline(self.root, window=window, **arguments), f"{uuid.uuid4()}.1")
        store = self.store()
        newest = max(store.get_contexts_by_type("pipeline_run"), key=lambda context: context.id)
        executions = store.get_executions_by_context(newest.id)
        types = {kind.id: kind.name.rpartition(".")[2] for kind in store.get_execution_types()}
        states = {types[one.type_id]: mlmd.Execution.State.Name(one.last_known_state) for one in executions}
        trainer = [one.id for one in executions if types[one.type_id] == "StubTrainer"]
        events = store.get_events_by_execution_ids(trainer)
        [model] = store.get_artifacts_by_id([one.artifact_id for one in events if one.type == mlmd.Event.OUTPUT])
        return {
            "example_gen": states["CocoExampleGen"],
            "trainer": states["StubTrainer"],
            "spans": model.custom_properties["spans"].string_value,
        }

    def store(self) -> Any:
        import ml_metadata
        from tfx.orchestration import metadata

        return ml_metadata.MetadataStore(metadata.sqlite_metadata_connection_config(str(self.root / "metadata.sqlite")))

    def examples(self) -> list[Any]:
        return sorted(self.store().get_artifacts_by_type("Examples"), key=lambda artifact: artifact.id)


def _train_ids(examples: Any) -> list[int]:
    import tensorflow as tf

    shards = [str(path) for path in Path(examples.uri, "Split-train").iterdir()]
    parsed = [tf.train.Example.FromString(record.numpy()) for record in tf.data.TFRecordDataset(shards)]
    return sorted(int(one.features.feature["image/source_id"].bytes_list.value[0]) for one in parsed)


NEW = {"example_gen": "COMPLETE", "trainer": "COMPLETE"}
SAME = {"example_gen": "CACHED", "trainer": "CACHED"}


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["local", "beam"])
def test_each_day_trains_on_the_window_that_ends_with_it(tmp_path: Path, runner: str) -> None:
    runs, root = Runs(tmp_path, runner), str(tmp_path / "data/{SPAN:2}")

    write_data_set(tmp_path / "data/01", images=1)
    assert runs(window=2, data_root=root) == {**NEW, "spans": "1"}
    write_data_set(tmp_path / "data/02", images=2)
    assert runs(window=2, data_root=root) == {**NEW, "spans": "2,1"}
    assert runs(window=2, data_root=root) == {**SAME, "spans": "2,1"}
    write_data_set(tmp_path / "data/03", images=3)
    assert runs(window=2, data_root=root) == {**NEW, "spans": "3,2"}
    if runner == "local":
        assert runs(window=2, data_root=root, span=3) == {**SAME, "spans": "3,2"}, "the newest, specified"
        assert runs(window=2, data_root=root, span=2) == {**SAME, "spans": "2,1"}, "a window ends with the span read"
        assert [one.custom_properties["span"].int_value for one in runs.examples()] == [1, 2, 3]
        assert list(map(_train_ids, runs.examples())) == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.slow
def test_versions_and_what_is_recorded_of_them(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "local")
    root = str(tmp_path / "{YYYY}{MM}{DD}/v{VERSION}")
    write_data_set(tmp_path / "19700108/v1", images=1)
    write_data_set(tmp_path / "19700109/v9", images=2)
    write_data_set(tmp_path / "19700109/v10", images=3)
    sources = {name: (f"{root}/annotations/instances_{name}.json", f"{root}/images") for name in ("train", "val")}

    assert runs(window=3, data_root=root, version=9) == {**NEW, "spans": "8"}
    assert runs(window=3, data_root=root) == {**NEW, "spans": "8"}
    assert runs(window=3, data_root=root, span=8, version=10) == {**SAME, "spans": "8"}
    assert runs(window=3, data_root=root, span=7) == {**NEW, "spans": "7"}
    # One of the two versions of day 8, the newest day, and not twice.
    write_data_set(tmp_path / "19700110/v1", images=4)
    assert runs(window=3, data_root=root) == {**NEW, "spans": "9,8,7"}

    recorded = [
        {key: value.int_value for key, value in one.custom_properties.items() if key in ("span", "version")}
        for one in runs.examples()
    ]
    assert recorded == [
        {"span": 8, "version": 9},
        {"span": 8, "version": 10},
        {"span": 7, "version": 1},
        {"span": 9, "version": 1},
    ]
    assert list(map(_train_ids, runs.examples())) == [[1, 2], [1, 2, 3], [1], [1, 2, 3, 4]]
    fingerprints = {one.custom_properties["input_fingerprint"].string_value for one in runs.examples()}
    assert len(fingerprints) == 4
    # Data that was corrected replaces what was read before.
    annotations = tmp_path / "19700109/v10/annotations/instances_train.json"
    annotations.write_text(annotations.read_text() + "\n")
    assert runs(window=3, data_root=root, span=8) == {**NEW, "spans": "8,7"}
    assert runs(window=3, data_root=root) == {"example_gen": "CACHED", "trainer": "COMPLETE", "spans": "9,8,7"}
    # The same files, but not the data that the window is one of.
    assert runs(window=3, splits=sources) == {**NEW, "spans": "9"}
    assert runs(window=3, data_root=str(tmp_path / "19700110/v1")) == {**NEW, "spans": "0"}


@pytest.mark.slow
def test_a_pattern_without_any_span_is_refused_before_anything_runs(tmp_path: Path) -> None:
    from components.coco_example_gen.component import CocoExampleGen

    with pytest.raises(DataError, match="no span found"):
        CocoExampleGen(data_root=str(tmp_path / "{SPAN}"))


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


@pytest.mark.slow
def test_the_window_is_counted_in_span_numbers(caplog: pytest.LogCaptureFixture) -> None:
    from tfx.types import standard_artifacts

    from pipelines.resolvers.span_window import SpanWindowStrategy

    def examples(number: int, span: int, version: int | None = None) -> Any:
        artifact = standard_artifacts.Examples()
        artifact.id = number
        artifact.set_int_custom_property("span", span)
        if version is not None:
            artifact.set_int_custom_property("version", version)
        return artifact

    known = [examples(1, 3, 2), examples(2, 3, 1), examples(3, 7), examples(4, 5), examples(5, 5), examples(6, 9)]

    def resolved(spans: int, newest: int) -> list[int]:
        inputs = {"newest": [one for one in known if one.id == newest], "examples": known}
        result = SpanWindowStrategy(spans).resolve_artifacts(None, inputs)
        assert result is not None
        assert result["newest"] == []
        return [artifact.id for artifact in result["examples"]]

    assert resolved(1, newest=3) == [3]
    assert resolved(2, newest=3) == [3], "span 6 was never there"
    assert resolved(3, newest=3) == [3, 5], "of span 5, what was read last"
    assert resolved(5, newest=3) == [3, 5, 1], "of span 3, the newest version"
    assert resolved(3, newest=4) == [4, 1], "the run's own examples, whatever was read later"
    assert resolved(2, newest=2) == [2]
    with caplog.at_level("INFO", "cocoflow.window"):
        resolved(100, newest=6)
    assert caplog.messages == ["training on a window of 100 spans, of which runs have read 9, 7, 5, 3"]
