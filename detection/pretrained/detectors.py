"""Published detectors in a cache, as model folders like those of `import-checkpoint`."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from detection.interop.automl.checkpoint import AutomlFormat
from detection.pretrained.publications import COCO_DETECTORS, Publication
from detection.storage.atomic import new_directory, write_json
from detection.storage.files import exists, is_file, remove_folder
from detection.storage.json_files import read_json
from detection.storage.paths import join, parent, require_supported
from detection.web.downloads import OFFLINE_VARIABLE, fetch, is_offline, unpack
from detection.weights.imported_model import MODEL_INDEX, ImportedModel, import_model, write_model
from detection.weights.locate import CheckpointChoice, locate_model
from schemas.artifacts import ORIGIN_JSON
from schemas.config.config_io import load_config
from schemas.detectors import DETECTORS
from schemas.errors import DataError

CACHE_VARIABLE = "COCOFLOW_WEIGHTS"
_WORK = "work"

_LOGGER = logging.getLogger("cocoflow.weights")


def cache_folder(configured: str | None) -> str:
    """Returns the folder of downloaded detectors.

    Args:
        configured: `model.weights_cache`.

    Raises:
        ConfigError: a path that is not supported.
    """
    folder = configured or os.environ.get(CACHE_VARIABLE) or str(Path("~/.cache/cocoflow/weights").expanduser())
    require_supported(folder, "model.weights_cache")
    return folder


def cached_detector(name: str, cache: str) -> str | None:
    """Returns the model folder of a downloaded detector; None: not in the cache."""
    folder = join(cache, name)
    return folder if is_file(join(folder, MODEL_INDEX)) else None


def find_model(model: str | Path, choice: CheckpointChoice = None) -> str:
    """Returns the path of a model that is given by its path or as the name of a published detector.

    Args:
        model: see `locate_model`; or a name, unless a file or folder has it: the detector is taken from the cache
            of weights, or downloaded.
        choice: as for `locate_model`.

    Raises:
        DataError: see `locate_model`; no weights of this name are published, or they cannot be downloaded.
    """
    name = str(model)
    if name not in DETECTORS or exists(name):
        return locate_model(model, choice)
    if choice is not None:
        raise DataError(f"{name}: a published detector has one checkpoint, so --checkpoint does not apply. Remove it.")
    if name not in COCO_DETECTORS:
        raise DataError(
            f"{name}: no weights of this detector are published. Train it, or pass one of {', '.join(COCO_DETECTORS)}."
        )
    try:
        return find_detector(COCO_DETECTORS[name], cache_folder(None), fetches=True)
    except DataError as error:
        raise DataError(f"{error} Without a network, pass a model of yours, such as that of `make demo`.") from None


def find_detector(publication: Publication, cache: str, *, fetches: bool) -> str:
    """Returns the model folder of a published detector; downloads it if it is not in the cache.

    Args:
        publication: entry of `COCO_DETECTORS`.
        cache: result of `cache_folder`.
        fetches: whether the network may be used.

    Raises:
        DataError: not in the cache, and cannot be downloaded or imported.
    """
    folder = cached_detector(publication.name, cache)
    if folder is not None:
        return folder
    if not fetches or is_offline():
        why = f"{OFFLINE_VARIABLE} is set" if is_offline() else "model.fetch_weights is false"
        raise DataError(f"{join(cache, publication.name)}: not in the cache of weights, and {why}.")
    folder = join(cache, publication.name)
    try:
        _fetch(publication, folder)
    except DataError:
        # Another process may have downloaded it meanwhile.
        if cached_detector(publication.name, cache) is None:
            raise
    return folder


def _fetch(publication: Publication, folder: str) -> None:
    """Downloads, checks and imports a detector; creates its folder atomically."""
    with new_directory(folder, last=[MODEL_INDEX]) as new:
        # Beside the result, on the cache's disk, so that a killed process leaves nothing elsewhere.
        work = new / _WORK
        work.mkdir()
        digest = fetch(publication.origin, work / "archive")
        unpack(work / "archive", work / "unpacked", origin=publication.origin)
        model = _import(work / "unpacked", publication)
        origin = publication.as_json() | {
            "sha256": digest,
            "bytes": (work / "archive").stat().st_size,
            "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        remove_folder(work)
        write_model(model._replace(prefix=publication.origin), new)
        write_json(new / ORIGIN_JSON, origin)
    _LOGGER.info("%s is in %s", publication.name, folder)


def _import(unpacked: Path, publication: Publication) -> ImportedModel:
    folders = sorted({file.parent for file in unpacked.rglob("*.index")})
    if len(folders) != 1:
        raise DataError(f"{publication.origin}: has {len(folders)} folders with a checkpoint; expected one.")
    config = load_config(None, [f"model.name={publication.name}"])
    try:
        return import_model(AutomlFormat, folders[0], config)
    except DataError as error:
        raise DataError(f"{publication.origin}: {str(error).replace(f'{unpacked}/', '')}") from None


def read_origin(checkpoint: str) -> dict[str, Any] | None:
    """Returns the origin of downloaded weights.

    Args:
        checkpoint: prefix of a checkpoint's files in a model folder.

    Returns:
        Content of `ORIGIN_JSON`; None: the weights were not downloaded.
    """
    path = join(parent(parent(checkpoint)), ORIGIN_JSON)
    content = read_json(path) if is_file(path) else None
    return content if isinstance(content, dict) else None
