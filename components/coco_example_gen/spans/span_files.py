"""The files of a data set whose folder, or whose files, have placeholders of a span in their paths."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from components.coco_example_gen.spans.spans import SpanVersion, fill, find_span, placeholders
from detection.datasets.layouts import WHOLE, Division, SplitFiles, find_splits, given_splits
from schemas.errors import ConfigError

# TFX looks for files, too: a folder that is empty, or has pictures only so far, is no span yet.
_ANNOTATED = ("/*.json", "/*/*.json", "/*record*", "/*/*record*")


class SpanSplits(NamedTuple):
    """Where the files of a data set lie.

    splits: their paths, with the placeholders that they have.
    newest: span and version found, or asked for; `NO_SPAN` of data without placeholders.
    """

    splits: dict[str, SplitFiles]
    newest: SpanVersion

    @property
    def files(self) -> dict[str, SplitFiles]:
        """The files of that span."""
        return splits_at(self.splits, self.newest)


def splits_at(splits: Mapping[str, SplitFiles], at: SpanVersion) -> dict[str, SplitFiles]:
    """The files of one span: `splits` with their placeholders replaced.

    Raises:
        ConfigError: see `fill`.
    """
    return map_paths(splits, lambda path: fill(path, at))


def map_paths(splits: Mapping[str, SplitFiles], change: Callable[[str], str]) -> dict[str, SplitFiles]:
    """`splits` with a change to each of their paths."""
    return {
        name: replace(
            files,
            annotations=change(files.annotations),
            images=files.images and change(files.images),
            keypoints=files.keypoints and change(files.keypoints),
        )
        for name, files in splits.items()
    }


def find_newest(
    splits: Mapping[str, SplitFiles], *, span: int | None = None, version: int | None = None
) -> SpanVersion:
    """The newest span of which all annotation files are there.

    Raises:
        ConfigError, DataError: see `find_span`.
    """
    searched = (_searched(files.annotations, files.images) for files in splits.values())
    return find_span(searched, span=span, version=version)


def locate_root(
    root: str, *, division: Division = WHOLE, span: int | None = None, version: int | None = None
) -> SpanSplits:
    """Finds the splits in a folder in one of the recognised layouts.

    Args:
        root: the folder, with placeholders or without; the layout is the newest span's.
        division: as for `find_splits`.
        span: this one instead of the newest.
        version: this one instead of the newest.

    Raises:
        ConfigError, DataError: see `find_span` and `find_splits`.
    """
    root = os.path.abspath(root)
    newest = find_span([root], span=span, version=version, below=_ANNOTATED)
    folder = fill(root, newest)
    found = find_splits(folder, division)
    return SpanSplits(map_paths(found, lambda path: root + path.removeprefix(folder)), newest)


def locate_given(
    sources: Mapping[str, tuple[str, str | None]],
    *,
    division: Division = WHOLE,
    span: int | None = None,
    version: int | None = None,
) -> SpanSplits:
    """Finds the splits that a user names outright.

    Args:
        sources: as for `given_splits`, with placeholders or without; an image folder
            may lack those that it does not depend on.
        division: as for `given_splits`.
        span: this one instead of the newest.
        version: this one instead of the newest.

    Raises:
        ConfigError: an image folder has a placeholder that its annotations lack; see
            also `find_span`.
        DataError: see `find_span` and `given_splits`.
    """
    absolute = {
        name: (os.path.abspath(annotations), images and os.path.abspath(images))
        for name, (annotations, images) in sources.items()
    }
    for name, (annotations, images) in absolute.items():
        if images and not placeholders(images) <= placeholders(annotations):
            raise ConfigError(
                f"data.splits.{name}.images = {images} has a placeholder that the annotations {annotations} lack. "
                "Write it there, too."
            )
    newest = find_span((_searched(*files) for files in absolute.values()), span=span, version=version)
    filled = {
        name: (fill(annotations, newest), images and fill(images, newest))
        for name, (annotations, images) in absolute.items()
    }
    found = given_splits(filled, division)
    patterns = {fill(path, newest): path for files in absolute.values() for path in files if path}
    return SpanSplits({name: _with_patterns(files, patterns) for name, files in found.items()}, newest)


def _searched(annotations: str, images: str | None) -> str:
    """What has to be there of a split: its annotation file, or the folder of its TFRecords."""
    return os.path.dirname(annotations) if images is None and "*" in annotations else annotations


def _with_patterns(files: SplitFiles, patterns: Mapping[str, str]) -> SplitFiles:
    """Found files as the patterns that they were found by."""
    annotations = patterns[files.annotations]
    folder, name = os.path.split(annotations)
    return replace(
        files,
        annotations=annotations,
        images=files.images and patterns[files.images],
        # COCO names it after the instances file.
        keypoints=files.keypoints and os.path.join(folder, name.replace("instances", "person_keypoints", 1)),
    )
