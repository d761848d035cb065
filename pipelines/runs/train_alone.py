"""Training without a pipeline: the same conversion and the same engine, one folder."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from components.coco_example_gen.spans.dataset_files import files_of
from detection.datasets.importers.label_map import read_dataset_file
from detection.datasets.splits import SplitFiles
from detection.storage.atomic import new_directory
from detection.storage.file_system import WorkingFolder
from detection.storage.files import is_file, list_folders, local_copy, remove_folder
from detection.storage.lock import lock_folder, open_working_folder
from detection.storage.outputs import require_output_folder, require_room
from detection.storage.paths import join, literal_path, require_supported
from detection.storage.temporary import scratch_tempdir
from detection.training.distributed.cluster import cluster_from_environment
from detection.training.upload_order import UPLOADED_LAST
from pipelines.console import quiet_run
from pipelines.runs.start_check import check_train
from schemas.artifacts import DATASET_JSON, SAVED_MODEL, SAVED_MODEL_FILE, TRAIN_SPLIT, split_dir
from schemas.config.config import Config, DataConfig
from schemas.errors import CocoflowError, DataError
from schemas.progress import log_phase

_LOG = "run.log"
_EXAMPLES = "examples"

_LOGGER = logging.getLogger("cocoflow.train")


def train_alone(config: Config, output: str, *, verbose: bool = False) -> str:
    """Trains a detector on the data set's train split.

    Args:
        config: `data`, `model` and `train` count; with `train.validation` also `evaluate`.
        output: local or remote folder; see the command `train`.
        verbose: libraries' logs to the terminal instead of `output`/run.log.

    Returns:
        Path of the SavedModel's folder.

    Raises:
        ConfigError: no data set is named, or see `detection.training.train.train`.
        DataError: the data cannot be used.
        CocoflowError: another process uses the folder; see `detection.training.train.train`.
    """
    require_supported(output, "--output")
    literal_path(output, "--output")
    leads = _leads(config)
    if leads:
        require_output_folder(output, "--output")
    names = [TRAIN_SPLIT, *filter(None, [config.validation_split])]
    files = files_of(config.data, *names)
    splits = {name: files[name] for name in names}
    with (
        _working_folder(output, leads=leads) as working,
        quiet_run(working.local / _LOG, verbose=verbose or not leads, phase="loading TensorFlow"),
    ):
        from detection.training.distributed.strategy import make_strategy
        from detection.training.distributed.workers import chief_first, explain_lost_workers
        from detection.training.train import train

        if config.data.window > 1:
            _LOGGER.warning("data.window is ignored outside `run`: training on one span")
        if config.train.init.from_previous_model:
            _LOGGER.warning("train.init.from_previous_model is ignored outside `run`: no previous model is known here")

        # First of all: once TensorFlow has done anything, machines can meet no more.
        strategy = make_strategy(config.train.strategy, tpu=config.train.tpu)
        detector = None
        with explain_lost_workers(strategy), chief_first(strategy):
            if leads:
                log_phase(_LOGGER, "checking the configuration")
                detector = check_train(config, splits, working.local, output, strategy)
            examples = _examples(splits, join(output, _EXAMPLES), config.data, makes=leads)
        dataset = read_dataset_file(examples / DATASET_JSON)
        train(
            config,
            shards=_shards(examples, TRAIN_SPLIT),
            validation_shards=_shards(examples, config.validation_split) if config.validation_split else [],
            datasets=[dataset],
            categories=dataset["categories"],
            output=working.local,
            strategy=strategy,
            detector=detector,
            mirror=working,
        )
    return join(output, SAVED_MODEL)


@contextlib.contextmanager
def _working_folder(output: str, *, leads: bool) -> Iterator[WorkingFolder]:
    """Yields the output folder, or a local one that is mirrored; the remote one has all files when the block ends.

    Several machines of one training share the folder: the one that writes holds it for all.
    """
    with contextlib.ExitStack() as stack:
        use = stack.enter_context(lock_folder(output, instead="name another folder with --output")) if leads else None
        stack.enter_context(scratch_tempdir())
        others = [f"{_EXAMPLES}/*", f"{SAVED_MODEL}/*"]
        working = stack.enter_context(open_working_folder(output, last=UPLOADED_LAST, exclude=others, use=use))
        try:
            yield working
        except BaseException:
            if leads:
                with contextlib.suppress(CocoflowError):  # the block's error counts
                    working.push()
            raise
        if leads:
            working.push()
            working.push_folder(SAVED_MODEL, last=[SAVED_MODEL_FILE])


def _shards(examples: Path, split: str) -> list[str]:
    return sorted(map(str, (examples / split_dir(split)).iterdir()))


def _leads(config: Config) -> bool:
    """Whether this process makes the records and writes run.log: of several machines, the chief does."""
    if config.train.strategy not in ("auto", "multi_worker"):
        return True
    cluster = cluster_from_environment(os.environ)
    return cluster is None or cluster.is_chief


def _examples(splits: dict[str, SplitFiles], folder: str, data: DataConfig, *, makes: bool) -> Path:
    """Records of the data as it is now, on a local disk: those of an earlier call where nothing has changed.

    Args:
        splits: files of the data set.
        folder: local or remote folder of all records.
        data: how to convert.
        makes: whether this process makes them; otherwise they are there.

    Raises:
        DataError: they are not, or the data cannot be used.
        CocoflowError: the disk has too little room for them.
    """
    from components.coco_example_gen.spans.fingerprint import data_state

    rules = json.dumps([data.on_fault.model_dump(), data.max_pixels, [asdict(files) for files in splits.values()]])
    log_phase(_LOGGER, "looking for changes of the data")
    state = data_state(splits.values(), data.label_map)
    name = state.fingerprint + hashlib.sha256(rules.encode()).hexdigest()
    current = join(folder, hashlib.sha256(name.encode()).hexdigest()[:16])
    if makes and not is_file(join(current, DATASET_JSON)):
        log_phase(_LOGGER, "reading the annotations")
        from components.coco_example_gen.conversion import convert

        # Without this file, a folder that is removed in part is not complete.
        remove_folder(folder, first=[join(name, DATASET_JSON) for name in list_folders(folder)])
        require_room(folder, state.size, advice="Free space, or choose a folder on another disk with --output.")
        with new_directory(current, last=[DATASET_JSON]) as beside, scratch_tempdir():
            convert(splits, beside, data)
    if not is_file(join(current, DATASET_JSON)):
        raise DataError(
            f"{current}: the chief's records are not there. All machines need to see the same data and the same "
            "output folder, under the same paths."
        )
    return local_copy(current, complete=DATASET_JSON)
