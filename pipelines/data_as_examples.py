"""Whatever data is named, as an `Examples` artifact's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.coco_example_gen.conversion import convert
from pipelines.data_files import files_of
from pipelines.scratch_folder import scratch_tempdir
from schemas.artifacts import DATASET_JSON
from schemas.config import Config


@contextmanager
def data_as_examples(config: Config, folder: str) -> Iterator[str]:
    """Yields the folder of an `Examples` artifact with the split `evaluate.split`.

    Args:
        config: `data` and `evaluate.split` count.
        folder: such a one, or one of another data set, which `data.root` then names, too;
            that is converted for the while.

    Raises:
        DataError: the data cannot be used.
    """
    if Path(folder, DATASET_JSON).is_file():
        yield folder
        return
    split = config.evaluate.split
    data = config.data
    with scratch_tempdir() as temporary:
        made = temporary / "examples"
        convert(
            {split: files_of(data, split)[split]},
            made,
            policies=data.on_fault,
            max_pixels=data.max_pixels,
            label_map=data.label_map,
        )
        yield str(made)
