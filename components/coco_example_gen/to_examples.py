"""`to-examples`: converts a data set to an `Examples` artifact's folder, for good or for the duration of a command."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from components.beam.pipelines import chooses_workers
from components.coco_example_gen.conversion import convert
from components.coco_example_gen.spans.dataset_files import categories_of, files_of
from detection.datasets.examples import Dataset, read_dataset
from detection.storage import files, paths
from detection.storage.outputs import output_folder
from detection.storage.temporary import scratch_tempdir
from schemas.artifacts import DATASET_JSON
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.config.issues import DEFAULT, IssuePolicies

_CONVERTED = ".examples"


def write_examples(config: Config, output: str) -> None:
    """Writes the data set as Examples; what has issues is dropped, unless `data.on_fault` says otherwise.

    Args:
        config: `data` and `run.beam_args` are used.
        output: folder, new or empty.  Leftovers of killed runs beside it, or in a remote one, are removed.

    Raises:
        ConfigError: no data set is named.
        DataError: the data cannot be used, or the folder cannot be written.
    """
    policies = IssuePolicies({DEFAULT: "drop"} | config.data.on_fault.root)
    with output_folder(output, last=DATASET_JSON) as folder, scratch_tempdir():
        data = config.data.model_copy(update={"on_fault": policies})
        convert(files_of(data), folder, data, beam_args=config.run.beam_args)


@contextmanager
def data_as_examples(
    config: Config,
    folder: str,
    *,
    split: str,
    check: Callable[[list[dict[str, Any]]], object] | None = None,
    shared: str | Path | None = None,
) -> Iterator[Dataset]:
    """Yields a split of an `Examples` artifact.

    Args:
        config: `data` and, with `shared`, `run.beam_args` are used.
        folder: folder of an `Examples` artifact, or of another data set, which `data.root` then names, too, and which
            is converted for the duration of the block.
        split: name of the split.
        check: called with the data set's categories before it is converted, if they are
            known then; raises if the data set does not fit; None: no check.
        shared: folder that the workers of `run.beam_args` reach, where these choose workers, to
            convert in; None: converts in memory, in a temporary folder.

    Raises:
        DataError: the data cannot be used.
    """
    if files.is_file(paths.join(folder, DATASET_JSON)):
        yield read_dataset(folder, split)
        return
    data = config.data
    of_split = {split: files_of(data, split)[split]}
    # This scans the annotation file.
    categories = None if check is None else categories_of(of_split, data)
    if check is not None and categories is not None:
        check(categories)
    with scratch_tempdir() as temporary:
        place, beam_args = (temporary, ()) if shared is None else (shared, config.run.beam_args)
        made = paths.join(place if chooses_workers(beam_args) else temporary, _CONVERTED)
        convert(of_split, made, data, beam_args=beam_args)
        yield read_dataset(made, split)
        files.remove_folder(made)


def folder_as_examples(
    folder: str, *, split: str, check: Callable[[list[dict[str, Any]]], object] | None = None
) -> AbstractContextManager[Dataset]:
    """Yields a split of a folder, as `data_as_examples` does with the default configuration."""
    config = load_config(None, [f"data.root={json.dumps(folder)}"])
    return data_as_examples(config, folder, split=split, check=check)
