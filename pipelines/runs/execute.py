"""Runs a pipeline in this process and returns its results."""

import contextlib
import functools
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_metadata  # noqa: F401  # without TFX, whose import takes long, this says so at once

from components.beam.preflight import require_runner
from components.coco_example_gen.spans.span_paths import SpanSplits
from components.history.queries import History
from components.history.records import SUBMITTED, Run
from components.history.store import read_executions, require_id
from detection.storage.atomic import require_writable, write_json, write_text
from detection.storage.file_system import FolderInUseError, FolderLock
from detection.storage.files import list_folders, remove_file, remove_folder
from detection.storage.lock import lock_folder
from detection.storage.paths import join, name_of, parent
from detection.storage.temporary import remove_leftovers, scratch_tempdir
from detection.training.distributed.cluster import CLUSTER_VARIABLES, cluster_from_environment
from pipelines.console import quiet_run
from pipelines.folders import RunLayout
from pipelines.runs.comparison import data_of, find_data, plan_run, unsettled_data
from pipelines.runs.recorded_run import record_component, recorded_run
from pipelines.runs.run_log import local_log
from pipelines.runs.start_check import check_run
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pipelines.runs.results import RunResults

_LOGGER = logging.getLogger("cocoflow.run")


def execute_run(
    config: Config,
    *,
    runner: str,
    verbose: bool = False,
    run_id: str | None = None,
    trigger: str = "command",
    if_changed: bool = False,
    settle: float = 0.0,
) -> "RunResults | str":
    """Runs the pipeline, records the run below `run.root`, and writes `summary.json` there.

    Args:
        config: whole configuration.
        runner: key of `pipelines.runners.local.RUNNERS`.
        verbose: send the libraries' logs to the terminal instead of run.log.
        run_id: id of the run, new, or that of a run that did not finish; None: a new one.
        trigger: why it runs, for the record.
        if_changed: only records a run that would change nothing since the newest finished one; resumes the last one
            if it failed; does nothing while another run is running.
        settle: with `if_changed`, seconds without a change after which the files of the data are complete.

    Returns:
        The results; or why the run would change nothing, as part of a sentence.

    Raises:
        CocoflowError: a component refused its input, the runner of `run.beam_args` cannot be used, the folder
            cannot be written, another process uses it, or the run with this id has finished.
        ConfigError: no data set, an unknown detector, an invalid id, or one of several machines.
        DataError: the data set is missing or not recognised.
    """
    _require_one_machine()
    layout = RunLayout(config)
    # Errors in the configuration appear now, not after hours of training.
    with quiet_run(None, verbose=verbose):
        require_runner(config.run.beam_args, layout.root)
    if run_id is not None:
        require_id(run_id)
    try:
        located = find_data(config)
    except DataError:
        reason = unsettled_data(config, settle) if if_changed else None
        if reason is None:
            raise
        return reason
    with contextlib.ExitStack() as stack:
        try:
            use = stack.enter_context(lock_folder(layout.root, instead="choose another folder with --set run.root=DIR"))
        except FolderInUseError as error:
            if if_changed:
                return str(error)
            raise
        data = data_of(config, located)
        if if_changed:
            planned = plan_run(config, located, layout.root, use, run_id=run_id, settle=settle, trigger=trigger)
            if isinstance(planned, str):
                return planned
            config, data, run_id = planned
        fields = {"trigger": trigger, "runner": runner, "data": data}
        return _execute(config, layout, located, use, run_id=run_id, verbose=verbose, fields=fields)


def _execute(
    config: Config,
    layout: RunLayout,
    located: SpanSplits,
    use: FolderLock,
    *,
    run_id: str | None,
    verbose: bool,
    fields: Mapping[str, Any],
) -> "RunResults":
    """Runs the pipeline in a folder that this process holds, from its record to its summary; see `execute_run`."""
    recorded = recorded_run(layout.root, use, run_id=run_id, config=config, **fields)
    with recorded as run, local_log(layout, use) as log:
        require_writable(layout.push_directory)
        write_text(layout.config, to_yaml(config))
        # The summary of an earlier run must not pass for this one's.
        remove_file(layout.summary)
        on_execution = functools.partial(record_component, layout.root, run)
        with quiet_run(log, verbose=verbose, on_execution=on_execution, phase="preparing the run"):
            is_first = not read_executions(layout.root, "DetectionTrainer")
            check_run(config, located.files, is_first=is_first)
            _run_pipeline(config, layout, run)
            from pipelines.runs.results import read_results

            history = History(layout.root)
            finished = history.with_results(run)
            results = read_results(finished, images=located.files[config.evaluate.split].images)
            _require_not_rolled_back(history, finished.pushed_path)
        use.require_held()
        write_json(layout.summary, results.summary())
    return results


def _require_not_rolled_back(history: History, pushed: str | None) -> None:
    """Requires that the version that holds the model, which an earlier run may have pushed, was not rolled back."""
    if pushed and pushed in history.rolled_back(parent(pushed)):
        raise DataError(
            f"{pushed}: not pushed again: this version was rolled back. Push another model, or publish it again with "
            f"cocoflow rollback --directory {parent(pushed)} --to {name_of(pushed)}."
        )


def _require_one_machine() -> None:
    cluster = cluster_from_environment(os.environ)
    if cluster is not None and cluster.size > 1:
        raise ConfigError(
            f"{' or '.join(CLUSTER_VARIABLES)} names {cluster.size} machines, each of which would run the whole "
            "pipeline. Unset it, or train on all of them with the command `train`."
        )


def _run_pipeline(config: Config, layout: RunLayout, run: Run) -> None:
    """Runs the pipeline, whose components record what they make."""
    _LOGGER.info("loading TFX, which takes half a minute")
    from tfx.orchestration.metadata import sqlite_metadata_connection_config

    from components.detection_trainer.working_folder import remove_served
    from pipelines.pipeline import create_pipeline
    from pipelines.runners.local import run_pipeline

    with scratch_tempdir() as scratch:
        # TFX fills it during a run; nothing is read from it afterwards.
        connection = sqlite_metadata_connection_config(str(scratch / "metadata.sqlite"))
        pipeline = create_pipeline(config, connection=connection, scratch=scratch / "pipeline")
        # Nobody writes the outputs of their earlier attempts.
        ended = {one.id for one in History(layout.root).runs() if one.state != SUBMITTED}
        sweep(layout, [component.id for component in pipeline.components], ended)
        run_pipeline(run.runner, pipeline, f"{run.id}.{run.attempt}")
        remove_served(layout.training)


def sweep(layout: RunLayout, nodes: Sequence[str], runs: Collection[str]) -> None:
    """Cleans up after killed runs: removes outputs that no record names, and the temporary folders beside them.

    Only the process that holds the run folder may call this.  Removes only folders that a driver named after one of
    the runs; see `components.history.driver`.

    Args:
        layout: layout of a folder that this process holds.
        nodes: ids of the nodes.
        runs: ids of the runs that have ended.

    Raises:
        DataError: a record cannot be read.
    """
    history, removed = History(layout.root), 0
    for node in nodes:
        folder = join(layout.artifacts, node)
        keys = [join(folder, name) for name in list_folders(folder)]
        half = [(key, name) for key in keys for name in list_folders(key) if _is_of(name, runs)]
        if not half:
            continue
        outputs = [listed for one in history.executions(node) for listed in one.outputs.values()]
        recorded = {output.uri for listed in outputs for output in listed}
        for key, name in half:
            path = join(key, name)
            if path not in recorded and not os.path.islink(path):
                removed += 1
                with contextlib.suppress(DataError):  # the next run tries again
                    remove_folder(path)
                remove_leftovers(key, name)
    if removed:
        _LOGGER.info("removed folders of killed or failed runs: %d", removed)


def _is_of(name: str, runs: Collection[str]) -> bool:
    run, _, attempt = name.rpartition(".")
    return run in runs and attempt.isdecimal()
