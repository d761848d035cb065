"""Records of earlier runs, and artifacts that stand for others; TFX takes 20 s to import: imported inside."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def _examples(folder: Path, *, span: int, version: int | None = None) -> Any:
    from tfx.types import artifact_utils, standard_artifacts

    from components.history import IDENTITY_PROPERTY

    examples = standard_artifacts.Examples()
    examples.uri = str(folder)
    examples.split_names = artifact_utils.encode_split_names(["train", "eval"])
    examples.set_int_custom_property("span", span)
    if version is not None:
        examples.set_int_custom_property("version", version)
    examples.set_string_custom_property(IDENTITY_PROPERTY, f"made of {span}")
    return examples


def test_records_are_read_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    from components import history

    folder = str(tmp_path / "history")
    assert history.read_examples(folder) == history.read_models(folder) == []
    assert history.read_blessed(folder) == set()
    for number, span in enumerate((7, 3)):
        examples = _examples(tmp_path / f"e{number}", span=span, version=number or None)
        history.record_examples(folder, examples, source="gs://data")
    assert history.read_examples(folder) == [
        history.ExamplesRecord(str(tmp_path / "e0"), "gs://data", 7, None, ["train", "eval"], "made of 7"),
        history.ExamplesRecord(str(tmp_path / "e1"), "gs://data", 3, 1, ["train", "eval"], "made of 3"),
    ]
    for uri, base in (("a", None), ("b", "a"), ("a", "b")):
        history.record_model(folder, uri=uri, training=f"training {uri}", base_model=base)
    models = [(one.uri, one.training, one.base_model) for one in history.read_models(folder)]
    assert models == [("a", "training a", "b"), ("b", "training b", "a")]
    for model, blessed in (("a", True), ("b", False), ("a", False)):
        history.record_verdict(folder, model=model, blessed=blessed)
    assert history.read_blessed(folder) == {"a"}
    for version in ("7", "8", "7"):
        history.record_push(folder, destination=f"serving/{version}", version=version, model="a")
    pushes = [(one.destination, one.version, one.model) for one in history.read_pushes(folder)]
    assert pushes == [("serving/7", "7", "a"), ("serving/8", "8", "a")]


def test_records_of_other_versions_are_read(tmp_path: Path) -> None:
    from components import history
    from detection.storage.atomic import write_json

    old = {"uri": "a", "training": "t", "base_model": None}
    write_json(tmp_path / "models" / "1.json", old)
    write_json(tmp_path / "models" / "2.json", old | {"uri": "b", "examples": ["e"], "config": "c" * 16, "later": 1})
    assert history.read_models(str(tmp_path)) == [
        history.ModelRecord("a", "t", None),
        history.ModelRecord("b", "t", None, ["e"], "c" * 16),
    ]


def test_a_configuration_is_kept_once(tmp_path: Path) -> None:
    from components import history

    folder = str(tmp_path)
    digests = [history.store_config(folder, text) for text in ("a: 1\n", "a: 2\n", "a: 1\n")]
    assert digests == [history.config_digest(text) for text in ("a: 1\n", "a: 2\n", "a: 1\n")]
    assert sorted(path.read_text() for path in (tmp_path / "configs").iterdir()) == ["a: 1\n", "a: 2\n"]
    assert Path(history.config_path(folder, digests[1])).read_text() == "a: 2\n"


def test_without_a_history_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from components import history

    monkeypatch.chdir(tmp_path)
    history.record_model(None, uri="a", training="t", base_model=None)
    history.record_verdict("", model="a", blessed=True)
    assert not list(tmp_path.iterdir())


def test_an_artifact_stands_for_others(tmp_path: Path) -> None:
    from tfx.types import standard_artifacts

    from components import history

    first, second = (_examples(tmp_path / name, span=span) for name, span in (("a", 1), ("b", 2)))
    output = standard_artifacts.Examples()
    output.uri = str(tmp_path / "window")
    records = [history.examples_record(one, source="data") for one in (second, first)]
    history.resolve_to(output, [asdict(one) for one in records])
    restored = history.resolved([output, first])
    assert [one.uri for one in restored] == [second.uri, first.uri, first.uri]
    assert [history.examples_record(one, source="data") for one in restored[:2]] == records
    model = standard_artifacts.Model()
    model.uri = str(tmp_path / "none")
    history.resolve_to(model, [])
    assert history.resolved([model]) == []
    history.resolve_to(model, [{"uri": "gs://models/3"}])
    assert [(type(one), one.uri) for one in history.resolved([model])] == [(standard_artifacts.Model, "gs://models/3")]
