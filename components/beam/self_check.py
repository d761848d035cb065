"""A small Beam pipeline that shows whether a runner gives what our pipelines need."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows

from detection.storage.atomic import write_json
from detection.storage.files import is_file, remove_folder
from detection.storage.json_files import read_json
from detection.storage.paths import absolute, join
from schemas.errors import CocoflowError, DataError, find_user_error
from schemas.quoting import one_line

_NUMBERS = range(20)
_EXPECTED: dict[str, list[Any]] = {
    "elements of finish_bundle": list(_NUMBERS),
    "tagged elements": [number for number in _NUMBERS if number % 2],
    "groups of GroupByKey": [[key, sum(_NUMBERS[key::3])] for key in range(3)],
    "a side input": [number + 100 for number in _NUMBERS],
}
_LENGTH = 500  # max characters of a runner's error


def check_runner(pipeline: beam.Pipeline, runner: str, folder: str) -> None:
    """Runs a small pipeline with several results, and compares them with the expected ones.

    Args:
        pipeline: empty pipeline of the runner.
        runner: its name, for messages.
        folder: folder, new or not, that the workers reach, for files of that pipeline, which are removed.

    Raises:
        CocoflowError: the pipeline fails, or a result differs.
    """
    work = join(absolute(folder), f".beam_check.{uuid.uuid4().hex[:8]}.tmp")
    paths = {name: join(work, f"{number}.json") for number, name in enumerate(_EXPECTED)}
    try:
        with pipeline:
            for name, collection in zip(_EXPECTED, _collections(pipeline), strict=True):
                results = collection | f"List {name}" >> beam.combiners.ToList() | f"Sort {name}" >> beam.Map(sorted)
                results | f"Write {name}" >> beam.Map(lambda values, path: write_json(path, values), paths[name])
        lost = [name for name, path in paths.items() if not is_file(path) or read_json(path) != _EXPECTED[name]]
    except Exception as error:  # any kind, from the runner
        reason = one_line(find_user_error(error) or f"{type(error).__name__}: {error}")[-_LENGTH:]
        raise CocoflowError(
            f"{runner}: a small test pipeline failed: {reason}. Correct run.beam_args, or remove --runner."
        ) from error
    finally:
        with contextlib.suppress(DataError):
            remove_folder(work)
    if lost:
        raise CocoflowError(
            f"{runner}: a small test pipeline ended without an error, but {', '.join(lost)} did not arrive, or "
            f"incomplete, in {folder}. Name a folder that all workers reach; if they do, this runner loses data: "
            "use another one, such as --runner=dask, or none."
        )


def _collections(pipeline: beam.Pipeline) -> tuple[beam.PCollection, ...]:
    """Builds the collections of `_EXPECTED`."""
    numbers = pipeline | beam.Create(_NUMBERS) | beam.Reshuffle()
    hundred = beam.pvalue.AsSingleton(pipeline | "Hundred" >> beam.Create([100]))
    tagged = numbers | "Tag" >> beam.Map(_tag).with_outputs("odd", main="even")
    return (
        numbers | beam.ParDo(_AtEnd()),
        tagged.odd,
        numbers | "Key" >> beam.Map(lambda number: (number % 3, number)) | beam.GroupByKey() | beam.MapTuple(_sum),
        numbers | "Add" >> beam.Map(lambda number, offset: number + offset, hundred),
    )


class _AtEnd(beam.DoFn):
    """Emits the elements of a bundle at its end, as `BatchElements` does."""

    def start_bundle(self) -> None:
        self._elements: list[int] = []

    def process(self, element: int) -> None:
        self._elements.append(element)

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(GlobalWindows.windowed_value, self._elements)


def _tag(number: int) -> int | beam.pvalue.TaggedOutput:
    return beam.pvalue.TaggedOutput("odd", number) if number % 2 else number


def _sum(key: int, numbers: Any) -> tuple[int, int]:
    return key, sum(numbers)
