"""Prints a lineage as a tree."""

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from components.coco_example_gen.spans.span_paths import SpanVersion
from pipelines.history.lineage import Evaluated, Lineage, Trained
from pipelines.history.runs import LIVE
from schemas.metrics import main_metrics
from schemas.quoting import printable

_UNKNOWN = "unknown"
_PUBLISHED = ("name", "weights", "origin", "licence")
_NO_WRAP = 10_000  # columns: paths stay whole


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
        _add(data, "examples", f"{examples.uri}, identity {examples.identity}")


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
