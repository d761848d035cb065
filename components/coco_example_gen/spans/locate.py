"""Locates the files of the data set that a configuration names."""

import functools
import json
import logging
from dataclasses import replace
from datetime import date

from components.coco_example_gen.spans.span_paths import SpanSplits, locate_given, locate_root, placeholders
from detection.datasets.splits import Division
from detection.storage.paths import absolute, require_supported
from schemas.config.config import DataConfig
from schemas.errors import ConfigError, DataError

_LOGGER = logging.getLogger("cocoflow.data")


def locate(data: DataConfig, *needed: str) -> SpanSplits:
    """Finds the files of each split of a data set: of its newest span, or of `data.span`.

    Args:
        data: the configuration's section.
        needed: splits that must be among them.

    Raises:
        ConfigError: neither `data.root` nor `data.splits`, or both; keys about spans
            that do not fit the paths.
        DataError: the files are not there, or not recognised, or of other splits only.
    """
    located = _locate(data)
    if has_spans(data):
        source = source_of(data)
        ahead = located.newest.span - (date.today() - date(1970, 1, 1)).days if "{YYYY}" in source else 0
        _log_span(located.newest.name_in(source), source, in_future=ahead > 1)
    if data.window > 1 and not has_spans(data):
        raise ConfigError(
            f"data.window = {data.window}, but the data's paths have no {{SPAN}} and no date. "
            "Write one there, or remove data.window."
        )
    for split in needed:
        if split not in located.files:
            listed = ", ".join(f"{name} ({files.annotations})" for name, files in located.files.items())
            raise DataError(
                f"{data.root or 'data.splits'}: no annotations of the split {split!r}, only {listed}. "
                f"Add its file, or specify it: --set data.splits.{split}.annotations=FILE "
                f"--set data.splits.{split}.images=DIR (then specify the other splits as well)."
            )
    return located


@functools.cache  # a command locates its data several times
def _log_span(span: str, source: str, *, in_future: bool) -> None:
    """Logs which span is read; warns of one in the future, which would stay the newest."""
    _LOGGER.info("reading %s of %s", span, source)
    if in_future:
        _LOGGER.warning(
            "%s lies in the future, and counts as the newest span: rename the folder if its date is a mistake, or set "
            "data.span",
            span,
        )


def require_one_data_set(data: DataConfig) -> None:
    """Requires that a configuration names one data set, without looking for it.

    Raises:
        ConfigError: neither `data.root` nor `data.splits`, or both.
    """
    if data.root is not None and data.splits:
        raise ConfigError("data.root and data.splits both name a data set. Remove one of them.")
    if data.root is None and not data.splits:
        raise ConfigError("no data set: give --data DIR, or data.root or data.splits in the configuration.")


def has_spans(data: DataConfig) -> bool:
    """Returns whether the paths of a data set have placeholders of spans.

    Raises:
        ConfigError: placeholders that name no span.
    """
    named = [split.files[0] for split in data.splits.values()] if data.root is None else [data.root]
    return any(map(placeholders, named))


def _locate(data: DataConfig) -> SpanSplits:
    require_one_data_set(data)
    require_supported(data.label_map or "", "data.label_map")
    division = Division(data.eval_fraction, data.split_ratios, data.sample_1_of_n, data.group or "")
    if data.root is not None:
        corners = data.voc_corners
        found = locate_root(data.root, division=division, span=data.span, version=data.version, corners=corners)
    else:
        given = {name: split.files for name, split in data.splits.items()}
        found = locate_given(given, division=division, span=data.span, version=data.version)
    return found._replace(files={name: replace(files, boxes=data.coco_boxes) for name, files in found.files.items()})


def source_of(data: DataConfig) -> str:
    """Names the data set that all spans of the same paths belong to."""
    if data.root:
        return absolute(data.root)
    return json.dumps({name: absolute(split.files[0]) for name, split in sorted(data.splits.items())})
