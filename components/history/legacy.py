"""Records of earlier versions, in files of four kinds, as records of components.

`<run.root>/history/{examples,models,blessings,pushes}/<time>.json`, with absolute paths.  Compiled pipelines of earlier
versions may still write them.  To be removed two releases after the first with `components.history.records`.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from components.history.facts import BlessingRecord, ExamplesRecord, PushRecord
from components.history.records import Output, Record, Value, read_all
from detection.storage.files import is_file, list_files
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import HISTORY, REFUSED_JSON, TRAINING_JSON
from schemas.errors import DataError


@dataclass(frozen=True)
class _Model:
    uri: str
    training: str
    base_model: str | None
    examples: tuple[str, ...] = ()
    config: Annotated[str, Field(pattern="^[0-9a-f]{16}$")] | None = None


def read_old_records(root: str, component: str) -> list[Record]:
    """Reads what earlier versions recorded of a component, oldest first.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    if component not in _KINDS:
        return []
    kind, adapter, convert = _KINDS[component]
    folder = join(root, HISTORY, kind)
    paths = [join(folder, name) for name in list_files(folder) if name.endswith(".json") and not name.startswith(".")]
    return read_all(adapter, paths, convert)


def was_refused(model: str) -> bool:
    """Returns whether an earlier version refused to push a model, and has not pushed it since.

    Args:
        model: URI of the model.
    """
    return is_file(join(model, REFUSED_JSON))


def _examples(old: ExamplesRecord) -> Record:
    properties: dict[str, Value] = {
        "data_source": old.source,
        "span": old.span,
        "identity": old.identity,
        "split_names": json.dumps(old.splits),
    }
    if old.version is not None:
        properties["version"] = old.version
    return Record("CocoExampleGen", "done", outputs={"examples": [Output(old.uri, "Examples", properties)]})


def _model(old: _Model) -> Record:
    properties: dict[str, Value] = {"training": old.training}
    if old.config is not None:
        properties["config"] = old.config
    base = [] if old.base_model is None else [old.base_model]
    # artifacts/DetectionTrainer/model/7, or <...>/DetectionTrainer/model in a compiled pipeline.
    model_run = "/model_run".join(old.uri.rsplit("/model", maxsplit=1))
    with contextlib.suppress(DataError, KeyError, TypeError):  # gone
        properties["identity"] = str(read_json(join(model_run, TRAINING_JSON))["training"])
    return Record(
        "DetectionTrainer",
        "done",
        inputs={"examples": list(old.examples), "base_model": base},
        outputs={"model": [Output(old.uri, "Model", properties)], "model_run": [Output(model_run, "ModelRun")]},
    )


def _blessing(old: BlessingRecord) -> Record:
    evaluation = [] if old.evaluation is None else [Output(old.evaluation, "ModelEvaluation")]
    blessing = Output("", "ModelBlessing", {"blessed": int(old.blessed)})
    outputs = {"evaluation": evaluation, "blessing": [blessing]}
    return Record("CocoEvaluator", "done", inputs={"model": [old.model]}, outputs=outputs)


def _push(old: PushRecord) -> Record:
    properties: dict[str, Value] = {"pushed": 1, "pushed_destination": old.destination, "pushed_version": old.version}
    outputs = {"pushed_model": [Output("", "PushedModel", properties)]}
    return Record("SavedModelPusher", "done", ended=old.time, inputs={"model": [old.model]}, outputs=outputs)


_KINDS: dict[str, tuple[str, TypeAdapter, Callable[..., Record]]] = {
    "CocoExampleGen": ("examples", TypeAdapter(ExamplesRecord), _examples),
    "DetectionTrainer": ("models", TypeAdapter(_Model), _model),
    "CocoEvaluator": ("blessings", TypeAdapter(BlessingRecord), _blessing),
    "SavedModelPusher": ("pushes", TypeAdapter(PushRecord), _push),
}
