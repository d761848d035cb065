"""Shows the runs of a `run.root`, and what they made, from files below it; TFX is not loaded."""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import rich.box
import rich.table
from ml_metadata.proto import metadata_store_pb2 as mlmd
from rich.console import Console
from rich.text import Text

from components.coco_example_gen.spans.span_paths import SpanVersion
from components.history.read import read_examples, read_models, read_pushes, read_verdicts
from detection.storage.files import is_dir, is_file
from detection.storage.paths import absolute, is_remote, join, name_of
from detection.storage.reading import read_text
from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.history import RunHistory
from pipelines.runs.metadata import RunStore, check_readable, node_name, open_run_store, producer_of
from pipelines.runs.run_record import DataRead, RunRecord
from schemas.artifacts import CONFIG_YAML
from schemas.config.config import Config
from schemas.config.config_io import from_yaml
from schemas.errors import CocoflowError, DataError
from schemas.quoting import printable

_AP = "AP"
_PIPED_COLUMNS = 240  # width of tables that go to a file
_NONE = "-"

_LOGGER = logging.getLogger("cocoflow.status")


class ArtifactState(NamedTuple):
    """An artifact of the runs.

    Attributes:
        node: component that made it.
        type: type of the artifact.
        state: "live"; "deleted": not reused, as its files were damaged; "missing": its folder is not there.
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
        artifacts: artifacts, oldest first; None: not asked for.
    """

    root: str
    runs: list[RunRecord]
    now: dict[str, list[str]]
    artifacts: list[ArtifactState] | None

    def as_json(self) -> dict[str, Any]:
        """Returns the status as JSON."""
        return {
            "root": self.root,
            "runs": [run.model_dump(mode="json") | {"dead": run.is_dead} for run in self.runs],
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
    history = RunHistory(root)
    runs = history.read_all()
    store = _open(root)
    artifacts = None
    if with_artifacts or not runs:
        artifacts = _recorded_artifacts(root) if store is None else _listed_artifacts(store)
    if not runs and not artifacts:
        raise DataError(f"--root {root}: no run was recorded here. Name the run.root of a pipeline, see `run --help`.")
    running = [run for run in runs if run.is_open and not run.is_dead]
    now = {run.id: [] if store is None else _running_nodes(store, run) for run in running}
    return Status(root, runs[:limit], now, artifacts)


def _open(root: str) -> RunStore | None:
    """Opens the metadata database if this machine can; the records tell the most without it."""
    try:
        path = join(root, CONFIG_YAML)
        config = from_yaml(read_text(path), path) if is_file(path) else Config()
        layout = RunLayout(config.model_copy(update={"run": config.run.model_copy(update={"root": root})}))
        database = MetadataDatabase(config.run.metadata, root=root, file=layout.metadata)
        if database.file is not None and (is_remote(root) or not database.file.is_file()):
            return None
        if database.file is not None:
            check_readable(layout, database.file)
        return open_run_store(database, read_only=True)
    except (CocoflowError, RuntimeError) as error:
        _LOGGER.warning("without the metadata database: %s", error)
        return None


def _running_nodes(store: RunStore, run: RunRecord) -> list[str]:
    context = store.store.get_context_by_type_and_name("pipeline_run", run.metadata_run or "")
    executions = store.store.get_executions_by_context(context.id) if context is not None else []
    return [
        node_name(store.store, execution.id)
        for execution in executions
        if execution.last_known_state == mlmd.Execution.RUNNING
    ]


def _listed_artifacts(store: RunStore) -> list[ArtifactState]:
    types = {kind.id: kind.name for kind in store.store.get_artifact_types()}
    return [
        ArtifactState(
            producer_of(store.store, artifact.id),
            types[artifact.type_id],
            _state(artifact.uri, mlmd.Artifact.State.Name(artifact.state).lower()),
            artifact.uri,
        )
        for artifact in store.artifacts()
    ]


def _recorded_artifacts(root: str) -> list[ArtifactState]:
    found = [("CocoExampleGen", "Examples", one.uri) for one in read_examples(root)]
    found += [("DetectionTrainer", "Model", one.uri) for one in read_models(root)]
    evaluations = dict.fromkeys(one.evaluation for one in read_verdicts(root) if one.evaluation is not None)
    found += [("CocoEvaluator", "ModelEvaluation", uri) for uri in evaluations]
    found += [("SavedModelPusher", "PushedModel", one.destination) for one in read_pushes(root)]
    return [ArtifactState(node, kind, _state(uri, "live"), uri) for node, kind, uri in found]


def _state(uri: str, recorded: str) -> str:
    return "missing" if recorded == "live" and not is_dir(uri) else recorded


def print_status(status: Status) -> None:
    """Prints the status as tables on stdout."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPED_COLUMNS)
    if status.runs:
        console.print(_table(_RUN_COLUMNS, [_run_row(run) for run in status.runs]))
    for run_id, nodes in status.now.items():
        console.print(f"Running now: {run_id}" + (f", in {', '.join(nodes)}" if nodes else ""), highlight=False)
    if status.artifacts is not None:
        console.print(_table(ArtifactState._fields, status.artifacts))


_RUN_COLUMNS = ("run", "trigger", "state", "started", "duration", "span", "AP", "blessed", "pushed")


def _run_row(run: RunRecord) -> list[str]:
    return [
        run.id,
        run.trigger,
        "dead: process ended" if run.is_dead else run.state,
        _local_time(run.started),
        _NONE if run.seconds is None else str(timedelta(seconds=round(run.seconds))),
        _NONE if run.data is None else _span(run.data),
        f"{run.metrics[_AP]:.4f}" if _AP in run.metrics else _NONE,
        {True: "yes", False: "no", None: _NONE}[run.blessed],
        _NONE if run.pushed_path is None else name_of(run.pushed_path),
    ]


def _span(data: DataRead) -> str:
    return SpanVersion(data.span, data.version).name_in(data.source).removeprefix("span ")


def _local_time(text: str) -> str:
    with contextlib.suppress(ValueError, OverflowError):  # the latter of the first and the last year
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return text


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> rich.table.Table:
    table = rich.table.Table(box=rich.box.SIMPLE)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
