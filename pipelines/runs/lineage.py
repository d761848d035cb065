"""Finds what a pushed model came from: training, data, evaluation and runs, by the records and its own files."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from components.coco_example_gen.spans.span_paths import SpanVersion
from components.history.queries import LIVE, History, read_blessing
from components.history.records import BLESSED_PROPERTY, DataRead, Model, Push
from components.history.store import absolute_paths, config_path, digest_of_text, read_run
from detection.coco.summary import read_metrics
from detection.storage.files import is_dir, is_file, read_bytes, read_text
from detection.storage.json_files import read_json
from detection.storage.paths import absolute, join, name_of, parent
from detection.storage.versions import newest_version
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
    WEIGHTS_JSON,
)
from schemas.config.config_io import from_yaml
from schemas.errors import CocoflowError, DataError
from schemas.metrics import main_metrics
from schemas.quoting import printable

_FINGERPRINT = "fingerprint.pb"  # TensorFlow's, another one with each export
_UNKNOWN = "unknown"
_PUBLISHED = ("name", "weights", "origin", "licence")
_NO_WRAP = 10_000  # columns: paths stay whole


@dataclass(frozen=True)
class Trained:
    """A trained model and its data.

    Attributes:
        model: URI; None: not recorded.
        training: identity of the training.
        config: digest of the configuration.
        config_path: file with the configuration; None: it was removed.
        data: records of the `Examples`, the newest span first.
        run: id of the run that trained it.
        published: origin and licence of the published weights that it started from; None: none known.
    """

    model: str | None = None
    training: str | None = None
    config: str | None = None
    config_path: str | None = None
    data: Sequence[DataRead] = ()
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
        push_state: its state, see `History.push_states`, and what is served instead; None: not recorded.
        pushed_by: id of the run that pushed it.
        exported: checkpoint that it was exported from, as the SavedModel itself says.
        chain: its training, then those of its base models.
        evaluated: the verdict on it.
        unknown: what could not be found, in sentences.
    """

    saved_model: str
    root: str | None = None
    push: Push | None = None
    push_state: str | None = None
    pushed_by: str | None = None
    exported: dict[str, Any] = field(default_factory=dict)
    chain: Sequence[Trained]
    evaluated: Evaluated | None = None
    unknown: Sequence[str] = ()


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
    history = _find_records(saved_model, root, origin)
    lineage = Lineage(
        saved_model=saved_model,
        pushed_by=str(origin["run"]) if "run" in origin else None,
        exported=_exported(saved_model),
        chain=[_own_description(saved_model)],
    )
    if history is not None:
        lineage = _with_records(lineage, history, origin)
    return replace(lineage, unknown=list(_unknown(lineage)))


def _with_records(lineage: Lineage, history: History, origin: Mapping[str, Any]) -> Lineage:
    """Returns the lineage of a model, known by its own files, with what the records add."""
    model, push = _model_and_push(history, lineage.saved_model, origin)
    if model is not None:
        first, *bases = _chain(history, model)
        if first.published is None:  # its folder may be gone
            first = replace(first, published=lineage.chain[0].published)
        lineage = replace(lineage, chain=[first, *bases], evaluated=_evaluated(history, model.uri))
    if push is not None:
        state = _push_state(history, push.destination)
        lineage = replace(lineage, push=push, push_state=state, pushed_by=push.run)
    return replace(lineage, root=history.root)


def _push_state(history: History, version: str) -> str:
    [state] = history.push_states([version]).values()
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
        destination = next(reversed(History(path).pushes), None)
        if destination is None:
            raise DataError(f"{path}: no push was recorded here. See the runs with `status --root {path}`.")
        if not is_file(join(destination, SAVED_MODEL_FILE)):
            raise DataError(f"{destination}: the last pushed model is not there. Name the folder that it was moved to.")
        return destination
    newest = newest_version(path, SAVED_MODEL_FILE)
    if newest is None:
        raise DataError(f"{path}: no pushed model here. Name a pushed version, a push directory or a run.root.")
    return newest


def _find_records(saved_model: str, root: str | None, origin: Mapping[str, Any]) -> History | None:
    """Returns the records that belong to a model: the first of several places that has any."""
    if root is not None:
        if not is_dir(join(absolute(root), HISTORY)):
            raise DataError(f"--root {root}: no records here. Name the run.root that the model was trained in.")
        return History(absolute(root))
    places = [parent(parent(saved_model)), parent(saved_model), *([str(origin["root"])] if "root" in origin else [])]
    config = join(saved_model, EXTRA_FILES, CONFIG_YAML)
    if is_file(config):
        with contextlib.suppress(CocoflowError):  # a configuration of another version
            places.append(absolute(from_yaml(read_text(config), config).run.root))
    found = next((place for place in places if is_dir(join(place, HISTORY))), None)
    return None if found is None else History(found)


def _model_and_push(history: History, saved_model: str, origin: Mapping[str, Any]) -> tuple[Model | None, Push | None]:
    """Returns the records of the model that was exported and of its push, also of a version that was moved."""
    push = history.pushes.get(saved_model)
    if push is not None:
        return history.models.get(push.model), push
    if "model" in origin:
        model = history.models.get(absolute_paths(str(origin["model"]), history.root))
    else:
        model = _equal_model(history, saved_model)
    pushes = [one for one in history.pushes.values() if model is not None and one.model == model.uri]
    return model, pushes[-1] if pushes else None


def _equal_model(history: History, saved_model: str) -> Model | None:
    """Returns the model with the fingerprint of a SavedModel that was not pushed."""
    fingerprint = join(saved_model, _FINGERPRINT)
    content = read_bytes(fingerprint) if is_file(fingerprint) else None
    for model in history.models.values():
        path = join(model.uri, SERVING_DIR, _FINGERPRINT)
        if content is not None and is_file(path) and read_bytes(path) == content:
            return model
    return None


def _own_description(saved_model: str) -> Trained:
    """Describes a model by the files inside the SavedModel alone."""
    path = join(saved_model, EXTRA_FILES, CONFIG_YAML)
    if not is_file(path):
        return Trained()
    names = (WEIGHTS_JSON, ORIGIN_JSON)
    published = next(filter(None, (_json_or_empty(join(saved_model, EXTRA_FILES, name)) for name in names)), None)
    return Trained(config=digest_of_text(read_text(path)), config_path=path, published=published)


def _chain(history: History, model: Model) -> Iterator[Trained]:
    seen: set[str] = set()
    uri: str | None = model.uri
    while uri is not None and uri not in seen:
        seen.add(uri)
        recorded = history.models.get(uri)
        yield Trained(uri) if recorded is None else _trained(history, recorded)
        uri = None if recorded is None else recorded.base_model


def _trained(history: History, model: Model) -> Trained:
    path = config_path(history.root, model.config or "")
    return Trained(
        model=model.uri,
        training=model.training,
        config=model.config,
        config_path=path if is_file(path) else None,
        data=[history.examples[uri] for uri in model.examples if uri in history.examples],
        run=model.execution.run,
        published=_json_or_empty(join(model.uri, INIT_REPORT_JSON), "published") or None,
    )


def _evaluated(history: History, model: str) -> Evaluated | None:
    """Returns the last verdict on a model; if the evaluation was removed, as its run recorded it."""
    evaluations = [one for one in history.executions("CocoEvaluator") if one.outputs and one.input("model") == model]
    for last in evaluations[-1:]:
        folder = last.output("evaluation").uri
        has_metrics, has_blessing = (is_file(join(folder, name)) for name in (METRICS_JSON, BLESSING_JSON))
        run = None if has_metrics and has_blessing else read_run(history.root, last.run)
        known = None if run is None else history.with_results(run)
        blessing = read_blessing(folder) if has_blessing else None
        return Evaluated(
            evaluation=folder,
            blessed=last.output("blessing").properties.get(BLESSED_PROPERTY) == 1,
            metrics=read_metrics(join(folder, METRICS_JSON)).by_name if has_metrics else known.metrics if known else {},
            reasons=blessing.reasons if blessing else known.reasons if known else (),
            baseline=blessing.baseline if blessing else None,
            run=last.run,
        )
    return None


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


def print_lineage(lineage: Lineage) -> None:
    """Prints the lineage as a tree on stdout."""
    tree = Tree(_text(lineage.saved_model))
    exported = lineage.exported
    if exported:
        _add(tree, "exported", f"step {exported.get('step', _UNKNOWN)}, {exported.get('weights', _UNKNOWN)} weights")
    if lineage.push is not None:
        by = f" by the run {lineage.pushed_by}" if lineage.pushed_by is not None else ""
        moved = "" if lineage.push.destination == lineage.saved_model else f", to {lineage.push.destination}"
        state = "" if lineage.push_state in (None, LIVE) else f": {lineage.push_state}"
        _add(tree, "pushed", f"{lineage.push.time}{by}{moved}{state}")
    branch = tree
    for number, trained in enumerate(lineage.chain):
        branch = _add(branch, "base model" if number else "model", trained.model or _UNKNOWN)
        _add_training(branch, trained)
        if number == 0 and lineage.evaluated is not None:
            _add_evaluation(branch, lineage.evaluated)
    if lineage.unknown:
        missing = _add(tree, "unknown", "")
        for sentence in lineage.unknown:
            missing.add(_text(sentence))
    Console(width=_NO_WRAP).print(tree)


def _add_training(branch: Tree, trained: Trained) -> None:
    if trained.run is not None:
        _add(branch, "trained", f"by the run {trained.run}")
    if trained.config is not None:
        _add(branch, "config", f"{trained.config}, {trained.config_path or 'its file is gone'}")
    if trained.published:
        name, weights, origin, licence = (trained.published.get(key, _UNKNOWN) for key in _PUBLISHED)
        _add(branch, "initial weights", f"{name} ({weights}), {origin}, licence {licence}")
    for examples in trained.data:
        span = SpanVersion(examples.span, examples.version)
        data = _add(branch, "data", f"{examples.source}, {span.name_in(examples.source)}")
        _add(data, "examples", f"{examples.examples}, identity {examples.identity}")


def _add_evaluation(branch: Tree, evaluated: Evaluated) -> None:
    by = f", by the run {evaluated.run}" if evaluated.run is not None else ""
    node = _add(branch, "evaluation", f"{evaluated.evaluation or _UNKNOWN}{by}")
    if evaluated.metrics:
        listed = (f"{name} {evaluated.metrics[name]:.4f}" for name in main_metrics(evaluated.metrics))
        _add(node, "metrics", ", ".join(listed))
    _add(node, "blessed", "yes" if evaluated.blessed else "no")
    for reason in evaluated.reasons:
        node.add(_text(reason))


def _add(branch: Tree, label: str, text: str) -> Tree:
    return branch.add(_text(f"{label}: {text}" if text else label))


def _text(text: str) -> Text:
    return Text(printable(text), no_wrap=True)
