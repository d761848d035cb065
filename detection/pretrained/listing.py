"""`weights`: lists and downloads published weights."""

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from detection.models.registry import detector_config, detector_names
from detection.pretrained.detectors import cache_folder, cached_detector, find_detector
from detection.pretrained.imagenet import available_file, find_weights_file
from detection.weights.publications import COCO_DETECTORS, IMAGENET, IMAGENET_BACKBONES, OTHER_DETECTORS, Publication
from schemas.errors import ConfigError

_PIPED_WIDTH = 120  # columns
_MAX_DETECTORS_WIDTH = 42  # columns of the names of detectors, so that the table has at most 120


class Entry(NamedTuple):
    """Published weights, and their location on this machine.

    Attributes:
        publication: name, origin and licence.
        detectors: detectors that can start from these weights.
        place: model folder or file; None: not downloaded or installed.
    """

    publication: Publication
    detectors: Sequence[str]
    place: str | None

    def as_json(self) -> dict[str, Any]:
        """Returns the entry as JSON."""
        size = {"megabytes": self.publication.megabytes}
        return self.publication.as_json() | size | {"detectors": list(self.detectors), "place": self.place}


def find_weights(names: Sequence[str], cache: str | None) -> list[Entry]:
    """Finds published weights, and whether they are on this machine.

    Args:
        names: detectors and backbones; empty: all.
        cache: `model.weights_cache`; None: the default.

    Raises:
        ConfigError: an unknown name.
    """
    folder = cache_folder(cache)
    by_backbone: dict[str, list[str]] = {}
    for detector in detector_names():
        by_backbone.setdefault(detector_config(detector).backbone.name, []).append(detector)
    entries = []
    for one in _publications(names):
        if one.weights == IMAGENET:
            file = available_file(one.name)
            entries.append(Entry(one, by_backbone.get(one.name, []), None if file is None else str(file)))
        else:
            entries.append(Entry(one, [one.preset], cached_detector(one.name, folder)))
    return entries


def fetch_weights(names: Sequence[str], cache: str | None) -> list[str]:
    """Downloads published weights that are not on this machine; returns their locations.

    Args:
        names: detectors, which go to the cache, and backbones, which go to Keras' cache.
        cache: `model.weights_cache`; None: the default.

    Raises:
        ConfigError: an unknown name, or a package that is not installed.
        DataError: weights cannot be downloaded.
    """
    folder = cache_folder(cache)
    return [
        str(find_weights_file(one.name, IMAGENET))
        if one.weights == IMAGENET
        else find_detector(one, folder, fetches=True)
        for one in _publications(names)
    ]


def _publications(names: Sequence[str]) -> list[Publication]:
    known = COCO_DETECTORS | OTHER_DETECTORS | IMAGENET_BACKBONES
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, 0.0)[0]
            raise ConfigError(f"weights: no published weights named {name!r}. The nearest is {nearest}.")
    return [known[name] for name in names or known]


def print_weights(entries: Sequence[Entry]) -> None:
    """Prints the entries as a table of at most 120 columns on stdout; `Entry.as_json` has the complete paths."""
    table = Table("name", "weights", "for", "MB", "licence", "here", "origin", box=None, pad_edge=False)
    table.columns[2].max_width = _MAX_DETECTORS_WIDTH
    for publication, detectors, place in entries:
        table.add_row(
            publication.name,
            publication.weights,
            ", ".join(detectors) or "model.overrides.backbone.name",
            "-" if publication.megabytes is None else str(publication.megabytes),
            publication.licence,
            "-" if place is None else "yes",
            # The server of an address; `package` of a package, whose name has the name of the weights.
            urlsplit(publication.origin).hostname or publication.origin.split()[0],
        )
    console = Console()
    (console if console.is_terminal else Console(width=_PIPED_WIDTH)).print(table)
