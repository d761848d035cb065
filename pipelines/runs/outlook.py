"""What to do after a training: whether its metric was still rising, label-error candidates, the next command."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from detection.analysis.analysis_file import read_analysis
from detection.reports.evaluation.next_steps import LABEL_ERRORS, next_steps
from detection.storage.files import is_file, read_text
from detection.storage.paths import join, shown
from detection.training.validation.history import outlook, read_history
from schemas.artifacts import ANALYSIS_JSON, CONFIG_YAML, HISTORY_JSON, REPORT_HTML, VALIDATION
from schemas.config.config_io import from_yaml
from schemas.config.train.training import LENGTHS, TrainConfig
from schemas.program import program_command

_SET = "--set"
_LEARNED = 0.02  # below, a metric has not begun to rise


class TrainingOutlook(NamedTuple):
    """Whether a longer training promises a better metric.

    rising: whether the metric was still rising.
    text: the evaluations that say so; and what ten times the steps may reach, if it was still rising.
    steps: steps of the training.
    """

    rising: bool
    text: str
    steps: int


def training_outlook(folder: str | Path) -> TrainingOutlook | None:
    """Tells from its validation whether a training's metric was still rising at its end.

    Args:
        folder: output folder of the training.

    Returns:
        None: no evaluations, or too few.

    Raises:
        DataError: a file of the folder cannot be read.
    """
    history = read_history(join(folder, VALIDATION, HISTORY_JSON))
    if not history:
        return None
    path = join(folder, CONFIG_YAML)
    train_config = from_yaml(read_text(path), where=path).train
    metric, last = train_config.validation.metric, history[-1]
    values = [(entry.step, entry.metrics[metric]) for entry in history]
    found = outlook(values, decay_start=train_config.decay_start)
    if found is None:
        return None
    best = max(values, key=lambda one: one[1])
    if found.is_rising:
        points, what = dict([found.before, found.later, values[-1]]), "was still rising"
    else:
        points, what = dict([best, values[-1]]), "has stopped rising" if best[1] >= _LEARNED else "has hardly risen"
    text = f"{metric} {what}: " + ", ".join(f"{value:.4f} after {step:,} steps" for step, value in points.items())
    if found.is_rising and found.expected is not None:
        text += f", perhaps {found.expected:.2f} or more after {10 * last.step:,}"
    return TrainingOutlook(found.is_rising, text, last.step)


def label_errors(evaluation: str) -> str | None:
    """Describes the label-error candidates of an evaluation; None: no candidates, or no analysis.

    Args:
        evaluation: folder of the evaluation.

    Raises:
        DataError: the analysis cannot be read.
    """
    path = join(evaluation, ANALYSIS_JSON)
    steps = next_steps(read_analysis(path)) if is_file(path) else []
    step = next((step for step in steps if step.rule == LABEL_ERRORS), None)
    return None if step is None else f"{step.evidence} {shown(join(evaluation, REPORT_HTML))}#{step.section}"


def longer_command(typed: Sequence[str], train_config: TrainConfig, *, steps: int) -> str:
    """Returns a command again, for a training twice as long.

    Args:
        typed: the command's arguments, from its name on; paths among them are relative to the current folder.
        train_config: its configuration.
        steps: steps of its training.
    """
    written = ((key, getattr(train_config, key)) for key in ("epochs", "budget"))
    key, length = next(((key, value) for key, value in written if value), ("steps", steps))
    words = [*_without_length(typed), _SET, f"train.{key}={2 * length}"]
    return f"{program_command()} {shlex.join(words)}"


def _without_length(typed: Sequence[str]) -> Iterator[str]:
    """Yields the words of a command without `--set train.steps=...`, `train.epochs` and `train.budget`."""
    words = iter(typed)
    for word in words:
        flag, equals, value = word.partition("=")
        value = value if equals else next(words, "") if flag == _SET else ""
        if flag == _SET and value.partition("=")[0].strip().removeprefix("train.") in LENGTHS:
            continue
        yield from [word] if equals or flag != _SET else [word, value]


def predict_command(model: str, images: str) -> str:
    """Returns the command that runs a model on images; it works in the current folder.

    Args:
        model: folder of a SavedModel.
        images: file or folder.
    """
    return (
        f"{program_command()} predict --model {shlex.quote(shown(model))} --images {shlex.quote(shown(images))} "
        "--output detections.json --draw detections.png"
    )
