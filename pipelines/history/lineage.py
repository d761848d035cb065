"""Finds what a pushed model came from: training, data, evaluation and runs, by the records and its own files."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from components.history.facts import ExamplesRecord, ModelRecord, PushRecord
from components.history.read import read_examples, read_models, read_pushes, read_verdict, read_verdicts
from components.history.records import absolute_paths, config_digest, config_path
from detection.coco.summary import read_metrics
from detection.storage.files import is_dir, is_file, read_bytes, read_text
from detection.storage.json_files import read_json
from detection.storage.paths import absolute, join, name_of, parent
from detection.storage.versions import newest_version
from pipelines.history.runs import LIVE, push_states, read_runs
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import DONE
from schemas.artifacts import (
    BLESSING_JSON,
    CONFIG_YAML,
    EXPORTED_FROM_JSON,
    EXTRA_FILES,
    HISTORY,
    INIT_REPORT_JSON,
    METRICS_JSON,
    ORIGIN_JSON,
    POINTER_JSON,
    SAVED_MODEL_FILE,
    SERVING_DIR,
)
from schemas.config.config_io import from_yaml
from schemas.errors import CocoflowError, DataError

_FINGERPRINT = "fingerprint.pb"  # TensorFlow's, another one with each export
T = TypeVar("T")


@dataclass(frozen=True)
class Trained:
    """A trained model and its data.

    Attributes:
        model: URI; None: not recorded.
        training: identity of the training.
        config: digest of the configuration.
        config_path: file with the configuration; None: there is none any more.
        data: records of the `Examples`, the newest span first.
        run: id of the run that trained it.
        published: origin and licence of the published weights that it started from; None: none, or not known.
    """

    model: str | None = None
    training: str | None = None
    config: str | None = None
    config_path: str | None = None
    data: Sequence[ExamplesRecord] = ()
    run: str | None = None
    published: dict[str, Any] | None = None


@dataclass(frozen=True)
class Evaluated:
    """The verdict on a model; None, or empty: not known."""

    evaluation: str | None
    blessed: bool | None
    metrics: dict[str, float]
    reasons: Sequence[str]
    baseline: Any
    run: str | None


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """What a SavedModel came from.

    Attributes:
        saved_model: its folder.
        root: `run.root` with the records; None: not found.
        push: record of its push, perhaps to another folder, from which it was moved; None: not recorded.
        push_state: state of the version there, see `push_states`, and what is served instead; None: not recorded.
        pushed_by: id of the run that pushed it.
        exported: checkpoint that it was exported from, as the SavedModel itself says.
        chain: its training, then those of its base models.
        evaluated: the verdict on it.
        unknown: what could not be found, in sentences.
    """

    saved_model: str
    root: str | None = None
    push: PushRecord | None = None
    push_state: str | None = None
    pushed_by: str | None = None
    exported: dict[str, Any] = field(default_factory=dict)
    chain: Sequence[Trained]
    evaluated: Evaluated | None = None
    unknown: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """Returns the lineage as JSON."""
        return asdict(self)


class _Records:
    """All records of components below a `run.root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.history = join(root, HISTORY)
        self.models = {record.uri: record for record in read_models(root)}
        self.examples = {record.uri: record for record in read_examples(root)}
        self.verdicts = read_verdicts(root)
        self.pushes = read_pushes(root)

    def run_of(self, recorded: str, node: str, **made: str | None) -> str | None:
        """Returns the run of a record; if it is an old one, without a run, the first run in which the node made this.

        Args:
            recorded: run of the record; "": not recorded.
            node: component of the record.
            made: what it made, as fields of `RunRecord`.
        """
        for run in [] if recorded else reversed(RunHistory(self.root).read_all()):
            state = run.components.get(node)
            if state and state.state == DONE and all(getattr(run, key) == value for key, value in made.items()):
                return run.id
        return recorded or None


def find_lineage(path: str, *, root: str | None = None) -> Lineage:
    """Finds what a pushed model came from.

    Args:
        path: folder of a SavedModel, push directory, of which the newest version counts, or `run.root`, of which
            the last push counts.
        root: `run.root` with the records; None: looks above the folder, and where the model's own files say.

    Raises:
        DataError: no such folder, no SavedModel there, or no record in `root`.
    """
    saved_model = _saved_model(absolute(path))
    origin = _json_or_empty(join(saved_model, EXTRA_FILES, POINTER_JSON))
    records = _find_records(saved_model, root, origin)
    lineage = Lineage(
        saved_model=saved_model,
        pushed_by=str(origin["run"]) if "run" in origin else None,
        exported=_exported(saved_model),
        chain=[_own_description(saved_model)],
    )
    if records is not None:
        lineage = _with_records(lineage, records, origin)
    return replace(lineage, unknown=list(_unknown(lineage)))


def _with_records(lineage: Lineage, records: _Records, origin: Mapping[str, Any]) -> Lineage:
    """Returns the lineage of a model, known by its own files, with what the records tell."""
    model, push = _model_and_push(records, lineage.saved_model, origin)
    if model is not None:
        first, *bases = _chain(records, model)
        if first.published is None:  # its folder may be gone
            first = replace(first, published=lineage.chain[0].published)
        lineage = replace(lineage, chain=[first, *bases], evaluated=_evaluated(records, model.uri))
    if push is not None:
        run = records.run_of(push.run, "SavedModelPusher", pushed_path=push.destination)
        lineage = replace(lineage, push=push, push_state=_push_state(records.root, push.destination), pushed_by=run)
    return replace(lineage, root=records.root)


def _push_state(root: str, version: str) -> str:
    [state] = push_states(root, [version]).values()
    served = newest_version(parent(version), SAVED_MODEL_FILE)
    return f"{state}; {name_of(served)} is served" if served and state != LIVE else state


def _exported(saved_model: str) -> dict[str, Any]:
    """Returns what a SavedModel says of its checkpoint, without values of wrong types."""
    path = join(saved_model, EXTRA_FILES, EXPORTED_FROM_JSON)
    known = {name: value for name, value in _json_or_empty(path).items() if type(value) in (int, str)}
    chosen_on = {name: value for name, value in _json_or_empty(path, "chosen_on").items() if type(value) in (int, str)}
    return known | ({"chosen_on": chosen_on} if chosen_on else {})


def _saved_model(path: str) -> str:
    if is_file(join(path, SAVED_MODEL_FILE)):
        return path
    if not is_dir(path):
        raise DataError(f"{path}: no such folder. Name a pushed version, a push directory or a run.root.")
    if is_dir(join(path, HISTORY)):
        pushes = read_pushes(path)
        if not pushes:
            raise DataError(f"{path}: no push was recorded here. See the runs with `status --root {path}`.")
        destination = pushes[-1].destination
        if not is_file(join(destination, SAVED_MODEL_FILE)):
            raise DataError(f"{destination}: the last pushed model is not there. Name the folder that it was moved to.")
        return destination
    newest = newest_version(path, SAVED_MODEL_FILE)
    if newest is None:
        raise DataError(f"{path}: no pushed model here. Name a pushed version, a push directory or a run.root.")
    return newest


def _find_records(saved_model: str, root: str | None, origin: Mapping[str, Any]) -> _Records | None:
    """Returns the records that belong to a model: the first of several places that has any."""
    if root is not None:
        if not is_dir(join(absolute(root), HISTORY)):
            raise DataError(f"--root {root}: no records here. Name the run.root that the model was trained in.")
        return _Records(absolute(root))
    places = [parent(parent(saved_model)), parent(saved_model), *([str(origin["root"])] if "root" in origin else [])]
    config = join(saved_model, EXTRA_FILES, CONFIG_YAML)
    if is_file(config):
        with contextlib.suppress(CocoflowError):  # a configuration of another version
            places.append(absolute(from_yaml(read_text(config), config).run.root))
    found = next((place for place in places if is_dir(join(place, HISTORY))), None)
    return None if found is None else _Records(found)


def _model_and_push(
    records: _Records, saved_model: str, origin: Mapping[str, Any]
) -> tuple[ModelRecord | None, PushRecord | None]:
    """Returns the records of the model that was exported and of its push, also of a version that was moved."""
    push = next((one for one in reversed(records.pushes) if one.destination == saved_model), None)
    if push is not None:
        return records.models.get(push.model), push
    if "model" in origin:
        model = records.models.get(absolute_paths(str(origin["model"]), records.root))
    else:
        model = _equal_model(records, saved_model)
    pushes = [one for one in records.pushes if model is not None and one.model == model.uri]
    return model, pushes[-1] if pushes else None


def _equal_model(records: _Records, saved_model: str) -> ModelRecord | None:
    """Returns the model with the fingerprint of a version that an earlier Cocoflow pushed."""
    fingerprint = join(saved_model, _FINGERPRINT)
    content = read_bytes(fingerprint) if is_file(fingerprint) else None
    for model in records.models.values():
        path = join(model.uri, SERVING_DIR, _FINGERPRINT)
        if content is not None and is_file(path) and read_bytes(path) == content:
            return model
    return None


def _own_description(saved_model: str) -> Trained:
    """Describes a model by the files inside the SavedModel alone."""
    path = join(saved_model, EXTRA_FILES, CONFIG_YAML)
    if not is_file(path):
        return Trained()
    published = _json_or_empty(join(saved_model, EXTRA_FILES, ORIGIN_JSON)) or None
    return Trained(config=config_digest(read_text(path)), config_path=path, published=published)


def _chain(records: _Records, model: ModelRecord) -> Iterator[Trained]:
    seen: set[str] = set()
    uri: str | None = model.uri
    while uri is not None and uri not in seen:
        seen.add(uri)
        recorded = records.models.get(uri)
        yield Trained(uri) if recorded is None else _trained(records, recorded)
        uri = None if recorded is None else recorded.base_model


def _trained(records: _Records, model: ModelRecord) -> Trained:
    kept = [] if model.config is None else [config_path(records.history, model.config)]
    path = next((path for path in [*kept, join(model.uri, CONFIG_YAML)] if is_file(path)), None)
    digest = model.config or (None if path is None else config_digest(read_text(path)))
    return Trained(
        model=model.uri,
        training=model.training,
        config=digest,
        config_path=path,
        data=[records.examples[uri] for uri in model.examples if uri in records.examples],
        run=records.run_of(model.record.run, "DetectionTrainer", model=model.uri),
        published=_json_or_empty(join(model.uri, INIT_REPORT_JSON), "published") or None,
    )


def _evaluated(records: _Records, model: str) -> Evaluated | None:
    verdict = next((one for one in reversed(records.verdicts) if one.model == model), None)
    if verdict is None:
        return None
    run = records.run_of(verdict.run, "CocoEvaluator", model=model, evaluation=verdict.evaluation)
    folder = verdict.evaluation
    report = None if folder is None else _read_if_there(read_metrics, join(folder, METRICS_JSON))
    judged = None if folder is None else _read_if_there(read_verdict, join(folder, BLESSING_JSON))
    known = next((one for one in read_runs(records.root) if one.id == run), None) if report is None else None
    return Evaluated(
        evaluation=folder,
        blessed=verdict.blessed,
        metrics=report.by_name if report is not None else {} if known is None else known.metrics,
        reasons=judged.reasons if judged is not None else [] if known is None else known.reasons,
        baseline=None if judged is None else judged.baseline,
        run=run,
    )


def _read_if_there(read: Callable[[str], T], path: str) -> T | None:
    return read(path) if is_file(path) else None


def _json_or_empty(path: str, *keys: str) -> dict[str, Any]:
    """Returns the object in a JSON file, or below its keys; empty if there is none."""
    content = read_json(path) if is_file(path) else {}
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else {}
    return content if isinstance(content, dict) else {}


def _unknown(lineage: Lineage) -> Iterator[str]:
    """Says what could not be found, and why."""
    trained = lineage.chain[0]
    if trained.config is None:
        yield "configuration: neither recorded nor in the SavedModel"
    elif trained.config_path is None:
        yield f"configuration: its file is gone, only the digest {trained.config} is recorded"
    if lineage.root is None:
        yield "runs, data and evaluation: no records were found; name the run.root of the training with --root"
    elif trained.model is None:
        yield f"runs, data and evaluation: no model recorded below {lineage.root} equals this one"
    else:
        yield from _unknown_in_records(lineage)


def _unknown_in_records(lineage: Lineage) -> Iterator[str]:
    if lineage.push is None:
        yield "push: no push of this model was recorded"
    for one in lineage.chain:
        if not one.data:
            yield f"data of {one.model}: not recorded"
    if lineage.evaluated is None:
        yield "evaluation: not recorded"
    elif not lineage.evaluated.metrics:
        yield "metrics: the evaluation's folder is not recorded, or gone"
