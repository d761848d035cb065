"""Published detectors in a cache, as model folders like those of `import-checkpoint`."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from detection.interop.programs import program_of
from detection.storage.atomic import new_directory
from detection.storage.files import exists, is_file, remove_folder
from detection.storage.json_files import read_json
from detection.storage.paths import join, parent, require_supported
from detection.web.downloads import OFFLINE_VARIABLE, fetch, is_archive, is_offline, unpack
from detection.weights.imported_model import MODEL_INDEX, ImportedModel, import_model, write_model
from detection.weights.locate import CheckpointChoice, locate_model
from detection.weights.publications import COCO_DETECTORS, Publication, published_detector, require_licence
from schemas.artifacts import EXTRA_FILES, INIT_REPORT_JSON, ORIGIN_JSON, WEIGHTS_JSON
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
        ConfigError: they have a licence that needs the user's consent.
    """
    name = str(model)
    published = published_detector(name)
    if (name not in DETECTORS and published is None) or exists(name):
        return locate_model(model, choice)
    if choice is not None:
        raise DataError(f"{name}: a published detector has one checkpoint, so --checkpoint does not apply. Remove it.")
    if published is None:
        raise DataError(
            f"{name}: no weights of this detector are published. Train it, or pass one of {', '.join(COCO_DETECTORS)}."
        )
    require_licence(published.as_json())
    try:
        return find_detector(published, cache_folder(None), fetches=True)
    except DataError as error:
        raise DataError(f"{error} Without a network, pass a model of yours, such as that of `make demo`.") from None


def find_detector(publication: Publication, cache: str, *, fetches: bool) -> str:
    """Returns the model folder of a published detector; downloads it if it is not in the cache.

    Args:
        publication: weights of a detector.
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
        file = work / "model.pth"
        digest = fetch(publication.origin, file)
        checkpoint = _unpacked(file, publication) if is_archive(publication.origin) else file
        model = _import(checkpoint, publication)
        origin = publication.as_json() | {
            "sha256": digest,
            "bytes": file.stat().st_size,
            "fetched": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        remove_folder(work)
        write_model(model._replace(prefix=publication.origin, published=origin), new)
    _LOGGER.info("%s is in %s", publication.name, folder)


def _unpacked(archive: Path, publication: Publication) -> Path:
    """Returns the folder of the checkpoint in an archive."""
    unpacked = archive.with_name("unpacked")
    unpack(archive, unpacked, origin=publication.origin)
    folders = sorted({file.parent for file in unpacked.rglob("*.index")})
    if len(folders) != 1:
        raise DataError(f"{publication.origin}: has {len(folders)} folders with a checkpoint; expected one.")
    return folders[0]


def _import(checkpoint: Path, publication: Publication) -> ImportedModel:
    config = load_config(None, [f"model.name={publication.preset}"])
    model = config.model.with_overrides(publication.overrides)
    try:
        [kind] = program_of(publication.program).formats
        return import_model(kind, checkpoint, config.model_copy(update={"model": model}))
    except DataError as error:
        reason = str(error).replace(f"{checkpoint}: ", "").replace(f"{checkpoint}/", "")
        raise DataError(f"{publication.origin}: {reason}") from None


def read_origin(checkpoint: str) -> dict[str, Any] | None:
    """Returns the origin of published weights that a model is, or was trained from.

    Args:
        checkpoint: prefix of the weights' files in a model folder, the output of a training, or a SavedModel.

    Returns:
        Content of `ORIGIN_JSON`; None: no published weights are known.
    """
    folder = parent(parent(checkpoint))
    extra = join(folder, EXTRA_FILES)
    names = (
        join(folder, ORIGIN_JSON),
        join(folder, INIT_REPORT_JSON),
        join(extra, WEIGHTS_JSON),
        join(extra, ORIGIN_JSON),
    )
    for path in names:
        content = read_json(path) if is_file(path) else None
        if isinstance(content, dict):
            origin = content.get("published") if path.endswith(INIT_REPORT_JSON) else content
            return origin if isinstance(origin, dict) else None
    return None
