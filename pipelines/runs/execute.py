"""Runs a pipeline in this process and returns its results."""

import contextlib
import logging
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import ml_metadata  # noqa: F401  # without TFX, whose import takes long, this says so at once

from components.beam.preflight import require_runner
from components.history.records import read_records
from components.run_report.report import NODE, executions, fields_so_far, run_fields
from components.selection.usable import rolled_back_versions
from detection.storage.atomic import require_writable, write_json, write_text
from detection.storage.file_system import FolderInUseError
from detection.storage.files import list_folders, remove_file, remove_folder
from detection.storage.lock import lock_folder
from detection.storage.paths import join, name_of, parent
from detection.storage.temporary import remove_leftovers, scratch_tempdir
from detection.training.distributed.cluster import CLUSTER_VARIABLES, cluster_from_environment
from pipelines.console import quiet_run
from pipelines.folders import RunLayout
from pipelines.runs.comparison import data_of, decide, find_data, pinned, record_skip, unsettled_data
from pipelines.runs.history import OpenRun, RunHistory, recorded_run, require_id
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
        if_changed: only records a run that would change nothing since the newest finished one; takes up the last one
            if it failed; does nothing while another run goes on.
        settle: with `if_changed`, seconds without a change after which the files of the data are complete.

    Returns:
        The results; or why the run would change nothing, as part of a sentence.

    Raises:
        CocoflowError: a component refused its input, the runner of `run.beam_args` cannot be used, the folder
            cannot be written, another process uses it, or the run of this id is done.
        ConfigError: no data set, an unknown detector, an invalid id, or one of several machines.
        DataError: the data set is missing or not recognised.
    """
    _require_one_machine()
    if run_id is not None:
        require_id(run_id)
    layout = RunLayout(config)
    # Errors in the configuration appear now, not after hours of training.
    with quiet_run(None, verbose=verbose):
        require_runner(config.run.beam_args, layout.root)
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
        history, data = RunHistory(layout.root), data_of(config, located)
        if if_changed:
            decision = decide(config, located, history, use, run_id=run_id, settle=settle)
            if decision.skipped is not None:
                record_skip(config, history, decision, trigger=trigger)
                return decision.skipped
            run_id, data = decision.run_id, decision.inputs.data
            config = pinned(config, data)
        fields = {"trigger": trigger, "runner": runner, "pipeline": config.run.name, "data": data}
        recorded = recorded_run(history, use, run_id=run_id, config=config, fields=fields)
        with recorded as open_run, local_log(layout, use) as log:
            require_writable(layout.push_directory)
            write_text(layout.config, to_yaml(config))
            # The summary of an earlier run must not pass for this one's.
            remove_file(layout.summary)
            with quiet_run(log, verbose=verbose, on_execution=open_run.tell_component, phase="preparing the run"):
                is_first = not read_records(layout.root, "DetectionTrainer")
                check_run(config, located.files, is_first=is_first)
                model_run = _run_pipeline(config, layout, open_run, ended=history.ended())
                from pipelines.runs.results import read_results

                images = located.files[config.evaluate.split].images
                results = read_results(open_run.record, model_run=model_run, images=images)
                _require_not_rolled_back(layout.root, open_run.record.pushed_path)
            use.require_held()
            write_json(layout.summary, results.summary())
    return results


def _require_not_rolled_back(root: str, pushed: str | None) -> None:
    """Requires that the version that holds the model, which an earlier run may have pushed, was not rolled back."""
    if pushed and pushed in rolled_back_versions(root, parent(pushed)):
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


def _run_pipeline(config: Config, layout: RunLayout, open_run: OpenRun, *, ended: Collection[str]) -> str:
    """Runs the pipeline, and updates the record with what it came to; returns the folder of the ModelRun."""
    _LOGGER.info("loading TFX, which takes half a minute")
    from tfx.orchestration.metadata import sqlite_metadata_connection_config

    from components.detection_trainer.working_folder import remove_served
    from pipelines.pipeline import create_pipeline
    from pipelines.runners.local import run_pipeline

    run, attempt = open_run.record.id, open_run.record.attempt
    with scratch_tempdir() as scratch:
        # TFX fills it during a run; nothing is read from it afterwards.
        connection = sqlite_metadata_connection_config(str(scratch / "metadata.sqlite"))
        pipeline = create_pipeline(config, connection=connection, scratch=scratch / "pipeline")
        sweep(layout, [component.id for component in pipeline.components], ended)
        try:
            run_pipeline(open_run.record.runner, pipeline, f"{run}.{attempt}")
        except BaseException:
            # A failure here must not hide that of the run.
            with contextlib.suppress(Exception):
                open_run.update(**fields_so_far(executions(layout.root, run, attempt)))
            raise
        *_, report = read_records(layout.root, NODE, runs={run})
        open_run.update(**run_fields(report))
        remove_served(layout.training)
        return report.inputs["model_run"][0]


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
    removed = 0
    for node in nodes:
        folder = join(layout.artifacts, node)
        keys = [join(folder, name) for name in list_folders(folder)]
        half = [(key, name) for key in keys for name in list_folders(key) if _is_of(name, runs)]
        if not half:
            continue
        outputs = [output for record in read_records(layout.root, node) for output in record.outputs.values()]
        recorded = {one.uri for listed in outputs for one in listed}
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
