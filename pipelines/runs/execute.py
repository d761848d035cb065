"""Runs a pipeline in this process and returns its results."""

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from components.beam.preflight import require_runner
from components.coco_example_gen.spans.locate import locate, source_of
from detection.storage.atomic import require_writable, write_json, write_text
from detection.storage.files import remove_file
from detection.storage.lock import exclusive_use
from detection.storage.output_folders import scratch_tempdir
from detection.training.distributed.cluster import CLUSTER_VARIABLES, cluster_from_environment
from pipelines.console import quiet_run
from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase, passwords_hidden
from pipelines.runs.history import OpenRun, RunHistory, recorded_run, require_id
from pipelines.runs.local_files import local_files
from pipelines.runs.metadata import check_metadata, metadata_failures_explained, open_run_store
from pipelines.runs.run_record import DataRead
from pipelines.runs.start_check import check_run
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.errors import ConfigError, DataError

if TYPE_CHECKING:
    from components.coco_example_gen.spans.span_paths import SpanSplits
    from pipelines.runs.results import RunResults

_LOGGER = logging.getLogger("cocoflow.run")


def execute_run(
    config: Config, *, runner: str, verbose: bool = False, run_id: str | None = None, trigger: str = "command"
) -> "RunResults":
    """Runs the pipeline, records the run below `run.root`, and writes `summary.json` there.

    Args:
        config: whole configuration.
        runner: key of `pipelines.runners.local.RUNNERS`.
        verbose: send the libraries' logs to the terminal instead of run.log.
        run_id: id of the run, new, or that of a run that did not finish; None: a new one.
        trigger: why it runs, for the record.

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
    located = locate(config.data, TRAIN_SPLIT, config.evaluate.split, *filter(None, [config.validation_split]))
    held = exclusive_use(layout.root, instead="choose another folder with --set run.root=DIR")
    with held as use:
        fields = {
            "trigger": trigger,
            "runner": runner,
            "pipeline": config.run.name,
            "data": DataRead(source=source_of(config.data), span=located.newest.span, version=located.newest.version),
        }
        history = RunHistory(layout.root)
        recorded = recorded_run(history, use, run_id=run_id, config_yaml=to_yaml(config), fields=fields)
        with recorded as open_run, local_files(layout, use) as local:
            database = MetadataDatabase(config.run.metadata, root=layout.root, file=local.database)
            check_metadata(layout, database)
            require_writable(layout.push_directory)
            write_text(layout.config, to_yaml(config))
            # The summary of an earlier run must not pass for this one's.
            remove_file(layout.summary)
            with quiet_run(local.log, verbose=verbose):
                check_run(config, located.files, is_first=_is_first(database))
                results = _run_pipeline(config, layout, database, located, open_run)
            results = results._replace(images=located.files[config.evaluate.split].images)
            use.require_held()
            write_json(layout.summary, {"run_id": open_run.record.id, **results.summary()})
    return results


def _require_one_machine() -> None:
    cluster = cluster_from_environment(os.environ)
    if cluster is not None and cluster.size > 1:
        raise ConfigError(
            f"{' or '.join(CLUSTER_VARIABLES)} names {cluster.size} machines, each of which would run the whole "
            "pipeline. Unset it, or train on all of them with the command `train`."
        )


def _is_first(database: MetadataDatabase) -> bool:
    if database.file is not None:
        return not database.file.exists()
    return open_run_store(database).is_empty()


def _run_pipeline(
    config: Config, layout: RunLayout, database: MetadataDatabase, located: "SpanSplits", open_run: OpenRun
) -> "RunResults":
    _LOGGER.info("loading TFX, which takes half a minute")
    from components.detection_trainer.working_folder import remove_served
    from pipelines.pipeline import create_pipeline
    from pipelines.runners.local import RUNNERS
    from pipelines.runs.repair import record_outputs, repair
    from pipelines.runs.results import read_nodes, read_results, run_fields

    pipeline = create_pipeline(config, located, database=database)
    run_id = f"{open_run.record.id}.{open_run.record.attempt}"
    with metadata_failures_explained(layout, database):
        repair(layout, database, [component.id for component in pipeline.components])
        open_run.update(metadata_run=run_id)
        open_run.write()
        try:
            with scratch_tempdir(), passwords_hidden():
                RUNNERS[open_run.record.runner](pipeline, run_id)
        except BaseException:
            # A failure here must not hide that of the run.
            with contextlib.suppress(Exception):
                open_run.update(**run_fields(read_nodes(database.open(read_only=True), run_id)))
            raise
        nodes = read_nodes(database.open(read_only=True), run_id)
        with contextlib.suppress(DataError):  # `read_results` says which output is missing
            open_run.update(**run_fields(nodes))
        remove_served(layout.training)
        record_outputs(layout, database)
        return read_results(nodes)
