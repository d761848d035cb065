"""Shows the runs of a `run.root`, and what they made, from the records below it; TFX is not loaded."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from components.coco_example_gen.spans.span_paths import SpanVersion
from components.history.files import damage_of
from components.history.queries import LIVE, History
from components.history.records import DESTINATION_PROPERTY, RUNNING, DataRead, Run
from components.history.store import in_parallel
from detection.storage.files import is_dir
from detection.storage.paths import absolute, name_of
from pipelines.tables import print_table
from schemas.errors import DataError

_COMPONENTS = (  # those that make artifacts, in the order of execution
    "CocoExampleGen",
    "RecordSchemaGen",
    "StatisticsGen",
    "ExampleValidator",
    "DetectionTrainer",
    "CocoEvaluator",
    "SavedModelPusher",
)
_AP = "AP"
_NONE = "-"


class ArtifactState(NamedTuple):
    """An artifact of the runs.

    Attributes:
        node: component that made it.
        type: type of the artifact.
        state: "live"; "damaged": not reused, as a file is missing or changed; "missing": its folder is not there.
        folder: URI.
    """

    node: str
    type: str
    state: str
    folder: str


class Status(NamedTuple):
    """What is known of a `run.root`.

    Attributes:
        root: the folder.
        runs: records of runs, newest first.
        now: components that run now, by the id of the run.
        pushes: states of the versions that the runs pushed, by path: "live", "rolled back", or "removed".
        artifacts: artifacts, oldest first; None: not asked for.
    """

    root: str
    runs: list[Run]
    now: dict[str, list[str]]
    pushes: dict[str, str]
    artifacts: list[ArtifactState] | None

    def as_json(self) -> dict[str, Any]:
        """Returns the status as JSON."""
        return {
            "root": self.root,
            "runs": [
                asdict(run)
                | {"seconds": run.seconds, "dead": run.is_dead, "push_state": self.pushes.get(run.pushed_path or "")}
                for run in self.runs
            ],
            "now": self.now,
            "artifacts": None if self.artifacts is None else [one._asdict() for one in self.artifacts],
        }


def read_status(root: str, *, limit: int | None, with_artifacts: bool) -> Status:
    """Reads the records of a `run.root`.

    Args:
        root: local or remote folder.
        limit: number of runs, the newest ones; None: all.
        with_artifacts: also lists the artifacts.

    Raises:
        DataError: no such folder, or no run was recorded there.
    """
    root = absolute(root)
    if not is_dir(root):
        raise DataError(f"--root {root}: no such folder. Name the run.root of a pipeline.")
    history = History(root)
    runs = history.runs()
    artifacts = [*_recorded_artifacts(history)] if with_artifacts or not runs else None
    if not runs and not artifacts:
        raise DataError(f"--root {root}: no run was recorded here. Name the run.root of a pipeline, see `run --help`.")
    running = [run for run in runs if run.state == RUNNING and not run.is_dead]
    now = {run.id: [] if run.now is None else [run.now] for run in running}
    runs = in_parallel(history.with_results, runs[:limit])
    pushes = history.push_states(run.pushed_path for run in runs if run.pushed_path)
    return Status(root, runs, now, pushes, artifacts)


def _recorded_artifacts(history: History) -> Iterator[ArtifactState]:
    for execution in (one for component in _COMPONENTS for one in history.executions(component)):
        damage = damage_of(execution) or ""
        for output in (output for listed in execution.outputs.values() for output in listed):
            folder = str(output.properties.get(DESTINATION_PROPERTY) or output.uri)
            state = "damaged" if damage.startswith(f"{folder}/") else "live"
            yield ArtifactState(execution.component, output.type, state if is_dir(folder) else "missing", folder)


def print_status(status: Status) -> None:
    """Prints the status as tables on stdout."""
    if status.runs:
        print_table(_RUN_COLUMNS, [_run_row(run, status.pushes) for run in status.runs])
    for run_id, nodes in status.now.items():
        print(f"Running now: {run_id}" + (f", in {', '.join(nodes)}" if nodes else ""))
    if status.artifacts is not None:
        print_table(ArtifactState._fields, status.artifacts)


_RUN_COLUMNS = ("run", "trigger", "state", "started", "duration", "span", "AP", "blessed", "pushed")


def _run_row(run: Run, pushes: Mapping[str, str]) -> list[str]:
    return [
        run.id,
        run.trigger,
        "dead: process ended" if run.is_dead else run.state,
        _local_time(run.started),
        _NONE if run.seconds is None else str(timedelta(seconds=round(run.seconds))),
        _NONE if run.data is None else _span(run.data),
        f"{run.metrics[_AP]:.4f}" if _AP in run.metrics else _NONE,
        {True: "yes", False: "no", None: _NONE}[run.blessed],
        _NONE if not run.pushed_path else _version(run.pushed_path, pushes[run.pushed_path]),
    ]


def _version(path: str, state: str) -> str:
    return name_of(path) if state == LIVE else f"{name_of(path)}, {state}"


def _span(data: DataRead) -> str:
    return SpanVersion(data.span, data.version).name_in(data.source).removeprefix("span ")


def _local_time(text: str) -> str:
    with contextlib.suppress(ValueError, OverflowError):  # the latter of the first and the last year
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return text
