"""Converting and checking a data set without a pipeline."""

import os
from pathlib import Path

from components.coco_example_gen.conversion import convert, report
from components.coco_example_gen.examination import Examination, examine
from detection.storage.atomic import require_writable
from pipelines.dataset_files import files_of
from pipelines.scratch_folder import scratch_tempdir
from pipelines.standalone.output_folder import output_folder
from schemas.config.config import Config
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError


def write_examples(config: Config, output: str) -> None:
    """Writes the data set as Examples; what has issues is left out, unless `data.on_fault` says otherwise.

    Args:
        config: `data` counts.
        output: folder, new or empty.  What killed runs left beside it is removed.

    Raises:
        ConfigError: no data set is named.
        DataError: the data cannot be used, or the folder cannot be written.
    """
    said = config.data.on_fault
    policies = IssuePolicies.model_validate("drop").model_copy(
        update={kind: said.of(kind) for kind in said.model_fields_set}
    )
    with output_folder(output) as folder, scratch_tempdir():
        splits = files_of(config.data)
        convert(
            splits,
            folder,
            policies=policies,
            max_pixels=config.data.max_pixels,
            label_map=config.data.label_map,
        )


def check_data(config: Config, page: str | None) -> Examination:
    """Finds what is wrong with the data set.

    Args:
        config: `data` counts.
        page: HTML file to write; None: none.

    Raises:
        ConfigError: no data set is named.
        DataError: an annotation file that cannot be read, or a page that cannot be
            written.
    """
    splits = files_of(config.data)
    if page is not None:
        if os.path.isdir(Path(page)):
            raise DataError(f"--report {page}: this is a folder. Name a file in it.")
        require_writable(Path(page).resolve().parent)
    with scratch_tempdir() as temporary:
        work = temporary / "work"
        work.mkdir()
        found = examine(
            splits,
            policies=config.data.on_fault,
            max_pixels=config.data.max_pixels,
            label_map=config.data.label_map,
            work=work,
            records=None,
        )
    if page is not None:
        report(found, splits, Path(page), max_pixels=config.data.max_pixels)
    return found
