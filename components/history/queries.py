"""Answers questions about the runs below a `run.root` from their records.

| question | answer |
|---|---|
| may this output be reused? | `History.reusable` |
| what was this model trained on? | `History.models`, `History.examples` |
| which is the newest blessed model that was not rolled back? | `History.newest_blessed` |
| which spans are there? | `History.window` |
| what ran, and what came of it? | `History.runs`, `History.with_results` |
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from operator import attrgetter
from typing import Any

from pydantic import TypeAdapter

from components.history.files import damage_of
from components.history.pushed_versions import ADDED_FILES, Rollback, digest_of, read_rollback
from components.history.records import (
    BLESSED_PROPERTY,
    DESTINATION_PROPERTY,
    DONE,
    FAILED,
    PUSHED_PROPERTY,
    REMOVED_PROPERTY,
    SKIPPED,
    SUBMITTED,
    ComponentState,
    DataRead,
    Execution,
    Model,
    Output,
    Push,
    Run,
    time_of,
)
from components.history.store import REPORTS, RUNS, in_parallel, read_executions, read_run, run_ids
from detection.storage.files import is_file
from detection.storage.json_files import parse_file
from detection.storage.paths import join, name_of, parent, with_name
from detection.storage.versions import numbered_versions
from schemas.artifacts import BLESSING_JSON, SAVED_MODEL_FILE, SERVING_DIR
from schemas.errors import CocoflowError, RefusedModelError

LIVE, ROLLED_BACK, REMOVED = "live", "rolled back", "removed"  # states of a pushed version

# Fields of `Run` that hold the results.
_RESULTS = ("components", "data", "model", "model_run", "evaluation", "metrics", "blessed", "reasons", "pushed_path")
# Those that are known before the run ends, with the component and output that they come from.
_MADE = (
    ("data", "CocoExampleGen", "examples"),
    ("model", "DetectionTrainer", "model"),
    ("model_run", "DetectionTrainer", "model_run"),
    ("evaluation", "CocoEvaluator", "evaluation"),
)
_LOGGER = logging.getLogger("cocoflow.history")


@dataclass(frozen=True)
class Blessing:
    """A blessing decision as the evaluator writes it.

    baseline: metrics of the last blessed model, see `schemas.metrics.metrics_by_iou_type`; None: no such model.
    checkpoint: images that chose the checkpoint, and images that judged it.
    """

    blessed: bool
    reasons: Sequence[str]
    baseline: Any = None
    checkpoint: str = ""


def read_blessing(evaluation: str) -> Blessing:
    """Reads the blessing decision of an evaluation.

    Args:
        evaluation: URI of the `ModelEvaluation`.

    Raises:
        DataError: the file cannot be read, or is another; it names the key.
    """
    return parse_file(TypeAdapter(Blessing), join(evaluation, BLESSING_JSON), what="a blessing")


class History:
    """The records below a `run.root`, each read at most once; all methods raise a DataError if one cannot be read.

    Args:
        root: `run.root`, local or remote.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._executions: dict[str, list[Execution]] = {}
        self._rollbacks: dict[str, dict[int, Rollback]] = {}

    def executions(self, component: str) -> list[Execution]:
        """Returns the records of a component, oldest first."""
        if component not in self._executions:
            self._executions[component] = read_executions(self.root, component)
        return self._executions[component]

    def _made(self, component: str, name: str) -> Iterator[tuple[Execution, Output]]:
        """Yields the artifacts of an output with their records, oldest first."""
        for execution in self.executions(component):
            for output in execution.outputs.get(name, []):
                yield execution, output

    def reusable(self, component: str, key: str) -> Execution | None:
        """Returns the newest execution of a key whose files are as they were; None: there is none."""
        for execution in reversed(read_executions(self.root, component, key=key)):
            if execution.state == DONE:
                damage = damage_of(execution)
                if damage is None:
                    return execution
                self._log_damage(execution, damage)
        return None

    def _log_damage(self, execution: Execution, damage: str) -> None:
        """Logs why an execution is not reused; a version that a later push removed is no damage."""
        for pushed in execution.outputs.get("pushed_model", []):
            version = str(pushed.properties.get(DESTINATION_PROPERTY))
            if version in self.removed_versions:
                sentence = "%s: %s was removed by push.keep_versions, so its push is not reused"
                _LOGGER.info(sentence, execution.component, version)
                return
        _LOGGER.warning("%s: %s, so this result is not reused", execution.component, damage)

    @cached_property
    def models(self) -> dict[str, Model]:
        """The trained models by URI, oldest first."""
        return {
            output.uri: Model.of(execution, output) for execution, output in self._made("DetectionTrainer", "model")
        }

    @cached_property
    def examples(self) -> dict[str, DataRead]:
        """The `Examples` by URI, oldest first."""
        return {output.uri: DataRead.of(output) for _, output in self._made("CocoExampleGen", "examples")}

    @cached_property
    def pushes(self) -> dict[str, Push]:
        """The pushes by destination, oldest first."""
        made = self._made("SavedModelPusher", "pushed_model")
        pushes = [Push.of(execution, one) for execution, one in made if one.properties.get(PUSHED_PROPERTY) == 1]
        return {push.destination: push for push in pushes}

    @cached_property
    def blessed(self) -> set[str]:
        """URIs of the models that any verdict blessed."""
        made = self._made("CocoEvaluator", "blessing")
        return {execution.input("model") for execution, one in made if one.properties.get(BLESSED_PROPERTY) == 1}

    @cached_property
    def refused(self) -> set[str]:
        """URIs of the models whose newest push was refused: they do not serve what was evaluated."""
        errors = {execution.input("model"): execution.error for execution in self.executions("SavedModelPusher")}
        return {model for model, error in errors.items() if error and error.kind == RefusedModelError.__name__}

    @cached_property
    def removed_versions(self) -> set[str]:
        """Folders of the versions that pushes removed."""
        return {
            with_name(str(pushed.properties[DESTINATION_PROPERTY]), removed)
            for _, pushed in self._made("SavedModelPusher", "pushed_model")
            for removed in json.loads(str(pushed.properties.get(REMOVED_PROPERTY, "[]")))
        }

    def newest_blessed(self, models: Iterable[Model] | None = None) -> Model | None:
        """Returns the newest model that is blessed by any verdict, complete, not refused and not rolled back.

        A blessed model whose push was refused does not count until it is pushed: what was evaluated of it cannot be
        served.  Nor does one that was rolled back, until it is published again.

        Args:
            models: models to choose from, oldest first; None: all.
        """
        for model in reversed(list(self.models.values() if models is None else models)):
            reason = self._obstacle(model) if model.uri in self.blessed else ""
            if reason is None:
                return model
            if reason:
                _LOGGER.info("%s: blessed, but %s, so an earlier model takes its place", model.uri, reason)
        return None

    def baseline(self, candidate: str, *, identity: str) -> Model | None:
        """Returns the newest blessed model trained before the candidate, and before the first of its identity.

        Args:
            candidate: URI of the model to evaluate.
            identity: identity of its training; "": not known.
        """

        def is_earlier(model: Model) -> bool:
            return model.uri != candidate and (not identity or model.identity != identity)

        return self.newest_blessed(takewhile(is_earlier, self.models.values()))

    def base_model(self, training: str) -> Model | None:
        """Returns the model to start a training from; for a finished training, its earlier base model.

        Args:
            training: identity of the training, without the base model.
        """
        finished = [model.base_model for model in self.models.values() if model.training == training]
        if finished and (finished[-1] is None or finished[-1] in self.models):
            return self.models.get(finished[-1] or "")
        return self.newest_blessed()

    def _obstacle(self, model: Model) -> str | None:
        """Returns why a blessed model does not count; None: it does."""
        if model.uri in self.refused:
            return "its push was refused"
        damage = damage_of(model.execution)
        if damage is not None:
            return damage
        directories = {parent(push.destination) for push in self.pushes.values()}
        affected = [directory for directory in directories if self._read_rollbacks(directory)]
        digest = digest_of(join(model.uri, SERVING_DIR), ignored=ADDED_FILES) if affected else ""
        return "it was rolled back" if any(self._refuses(one, digest, model.uri) for one in affected) else None

    def rolled_back(self, directory: str) -> set[str]:
        """Returns the versions of a push directory, by their paths, that runs pushed and that were rolled back."""
        return {
            push.destination
            for push in self._pushes_to(directory)
            if push.digest and self._refuses(directory, push.digest, push.model)
        }

    def push_states(self, versions: Iterable[str]) -> dict[str, str]:
        """Returns the states of pushed versions by path: `LIVE`, `ROLLED_BACK`, or `REMOVED`, also by hand."""
        paths = sorted({*versions})
        rolled_back = {path for directory in {*map(parent, paths)} for path in self.rolled_back(directory)}
        states = {path: ROLLED_BACK if path in rolled_back else LIVE for path in paths}
        exists = in_parallel(lambda path: is_file(join(path, SAVED_MODEL_FILE)), paths)
        return states | {path: REMOVED for path, is_there in zip(paths, exists, strict=True) if not is_there}

    def _refuses(self, directory: str, digest: str, model: str) -> bool:
        """Returns whether a rollback in a push directory refuses a model, and no later version there holds it."""
        rollbacks = self._read_rollbacks(directory)
        refused = max((number for number, one in rollbacks.items() if digest in one.refused_models), default=None)
        if refused is None:
            return False
        same = [push for push in self._pushes_to(directory) if push.digest == digest or push.model == model]
        pushed = {int(name_of(push.destination)) for push in same}
        holds = pushed | {number for number, one in rollbacks.items() if one.version in pushed}
        return all(number <= refused for number in holds)

    def _pushes_to(self, directory: str) -> list[Push]:
        return [push for push in self.pushes.values() if parent(push.destination) == directory]

    def _read_rollbacks(self, directory: str) -> dict[int, Rollback]:
        """Reads the rollbacks in a push directory, by the number of the version that each published."""

        def read(version: str) -> Rollback | None:
            return read_rollback(version) if is_file(join(version, SAVED_MODEL_FILE)) else None

        if directory not in self._rollbacks:
            versions = dict(numbered_versions(directory))
            found = zip(versions, in_parallel(read, versions.values()), strict=True)
            self._rollbacks[directory] = {number: rollback for number, rollback in found if rollback is not None}
        return self._rollbacks[directory]

    def window(self, newest: Output, *, spans: int) -> list[Output]:
        """Returns the `Examples` to train on, one per span, the newest span first; without damaged ones.

        Args:
            newest: the run's own `Examples`, with which the window ends.
            spans: length of the window in span numbers, those without data included.
        """
        made = {output.uri: (execution, output) for execution, output in self._made("CocoExampleGen", "examples")}
        own = DataRead.of(newest)
        while True:
            window = window_of([DataRead.of(output) for _, output in made.values()], own, spans=spans)
            earlier = [str(one.examples) for one in window if one.examples != newest.uri]
            damaged = {uri: damage for uri in earlier if (damage := damage_of(made[uri][0])) is not None}
            if not damaged:
                return [newest, *(made[uri][1] for uri in earlier)]
            for uri, damage in damaged.items():
                _LOGGER.warning("%s, so these examples are left out", damage)
                del made[uri]

    def runs(self) -> list[Run]:
        """Returns the runs without their results, the one that started last first; warns of those it cannot read.

        A report of a run that has no record of its own, such as that of a schedule in the cloud, is a run, too.
        """
        recorded = run_ids(self.root)
        reported = {*run_ids(self.root, folder=REPORTS)} - {*recorded}
        runs = in_parallel(self._read_or_warn, recorded)
        runs += in_parallel(lambda run_id: self._read_or_warn(run_id, REPORTS), reported)
        return sorted((run for run in runs if run), key=lambda run: time_of(run.started), reverse=True)

    def _read_or_warn(self, run_id: str, folder: str = RUNS) -> Run | None:
        try:
            return read_run(self.root, run_id, folder=folder)
        except CocoflowError as error:
            _LOGGER.warning("%s", error)
            return None

    def with_results(self, run: Run) -> Run:
        """Returns a run with what its report says, or else with what its components made so far.

        A submitted run with a report is done; one whose last execution failed has failed.
        """
        if run.state == SKIPPED:
            return run
        report = self._read_or_warn(run.id, REPORTS)
        end: dict[str, Any] = {}
        if report is not None and report.attempt == run.attempt:
            results = {name: getattr(report, name) for name in _RESULTS}
            end = {"state": DONE, "ended": report.ended}
        else:
            executed = executions_of(self.root, run.id, run.attempt)
            results = _results_of(executed)
            for last in executed[-1:]:
                if last.error is not None:
                    error = f"{last.component}: {last.error.text}"
                    end = {"state": FAILED, "ended": time_of(last.ended).isoformat(), "error": error}
        return replace(run, **results, **(end if run.state == SUBMITTED else {}))


def executions_of(root: str, run: str, attempt: int) -> list[Execution]:
    """Returns the records of the components that an attempt of a run executed, in the order of their ends."""
    return [one for one in read_executions(root, runs={run}) if one.attempt == attempt]


def states_of(executions: Iterable[Execution]) -> dict[str, ComponentState]:
    """Returns state and wall-clock seconds of executed components."""
    return {one.component: ComponentState(one.state, one.seconds) for one in executions}


def _results_of(executions: Sequence[Execution]) -> dict[str, Any]:
    """Returns the results, as fields of `Run`, that these executions made."""
    results: dict[str, Any] = {"components": states_of(executions)}
    for execution in executions:
        for field, node, name in _MADE:
            for output in execution.outputs.get(name, []) if execution.component == node else []:
                results[field] = DataRead.of(output) if field == "data" else output.uri
    return results


def window_of(examples: Sequence[DataRead], newest: DataRead, *, spans: int) -> list[DataRead]:
    """Returns the examples of a window, one per span, the newest span first: the last read of the newest version.

    Args:
        examples: examples of the pipeline, in the order in which they were made.
        newest: the run's own examples, with which the window ends.
        spans: length of the window in span numbers, those without data included.
    """
    same = sorted((one for one in examples if one.source == newest.source), key=attrgetter("order"))
    by_span = {one.span: one for one in same} | {newest.span: newest}
    return [by_span[span] for span in sorted(by_span, reverse=True) if newest.span - spans < span <= newest.span]
