"""From a folder in another format to COCO files, once for each state of the folder in a process."""

import atexit
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from detection.datasets.annotations.annotation_file import scan_file_names
from detection.datasets.readers import csv_tables, voc, yolo
from detection.datasets.readers.coco_files import elsewhere, has_texts, rewritten
from detection.datasets.readers.folder import Fault, Folder, ReadImage, Recognised, parent_of
from detection.datasets.splits import SplitFiles
from detection.storage import files, paths
from detection.storage.atomic import new_file, write_bytes
from detection.storage.files import count_readers, local_copy
from detection.storage.json_files import serialize
from detection.storage.temporary import temporary_folder
from schemas.errors import DataError

# At the start of the process: commands have scratch folders of their own, which end before it.
_FOLDER = Path(tempfile.gettempdir(), "cocoflow-readers")
# A reader is one file and one line; the first that recognises a folder reads it.
READERS = {"yolo": yolo.recognise, "voc": voc.recognise, "csv": csv_tables.recognise}


class CocoForm(NamedTuple):
    """A split as COCO.

    files: the split's files, of COCO.
    faults: objects that a reader left out, with the image's id in the file.
    """

    files: SplitFiles
    faults: list[tuple[int, Fault]]


def recognise(folder: Folder) -> tuple[str, Recognised] | None:
    """Returns the name of the reader of a folder, and what it recognised; None: no reader knows it.

    Of several, the first one that finds several splits reads the folder.

    Raises:
        DataError: a reader knows the format, but the folder lacks a part.
    """
    found: list[tuple[str, Recognised]] = []
    for name, reader in READERS.items():
        if recognised := reader(folder):
            if len(recognised.splits) > 1:
                found.insert(0, (name, recognised))
                break
            found.append((name, recognised))
    if len(found) > 1:
        name, chosen = found[0]
        others = " and ".join(other.title for _, other in found[1:])
        return name, replace(chosen, title=f"{chosen.title}; {others} beside it is not read")
    return found[0] if found else None


def as_coco(split: SplitFiles, there: Container[str] | None = None) -> CocoForm:
    """Makes COCO of a split in another format, and of a COCO file with texts for numbers or with images elsewhere.

    What is written, for each state of the files once, is removed at the end of the process.

    Args:
        split: the files of a split with images.
        there: paths of the files below `split.images`, if known.

    Raises:
        DataError: the files cannot be read, or do not have the split any more.
    """
    if split.reader:
        folder = Folder(split.root, split.corners, anywhere=split.anywhere)
        state = _digest(split.reader, split.root, split.corners, split.anywhere, list(folder.states.values()))
        forms = _convert(split.reader, folder, state)
        if split.part not in forms:
            raise DataError(f"{split.root}: the split {split.part} is not there any more. Rerun.")
        form = forms[split.part]
        made = replace(split, annotations=form.files.annotations, images=form.files.images, reader="")
        return CocoForm(replace(made, notes=(*split.notes, *form.files.notes)), form.faults)
    file = split.annotations
    local = str(local_copy(file)) if paths.is_remote(file) and files.is_file(file) else file
    names = list(dict.fromkeys(scan_file_names(local)))
    moved, images, notes = elsewhere(names, split.images or "", split.root, there)
    if moved or has_texts(local):
        content, more = rewritten(file, _below(split.root, file), moved)
        notes += more
        file = str(process_folder() / _digest(file, files.find_file(file), moved) / paths.name_of(file))
        write_bytes(file, json.dumps(content).encode(), durable=False)  # may have NaN, which is reported later
    return CocoForm(replace(split, annotations=file, images=images, notes=(*split.notes, *notes)), [])


def _below(root: str, path: str) -> str:
    return paths.relative(path, root) if root and path.startswith(f"{root}/") else path


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode(errors="replace")).hexdigest()[:32]


_converted: dict[str, dict[str, CocoForm]] = {}


def _convert(reader: str, folder: Folder, state: str) -> dict[str, CocoForm]:
    if state not in _converted:
        recognised = READERS[reader](folder)
        if recognised is None:
            raise DataError(f"{folder.root}: changed while it was read. Rerun.")
        with ThreadPoolExecutor(count_readers(folder.root)) as pool:
            images = {name: list(pool.map(recognised.read, of, repeat(name))) for name, of in recognised.splits.items()}
        notes = [*recognised.notes, *recognised.finish([image for of in images.values() for image in of])]
        categories = _categories(recognised, images)
        _converted[state] = {
            split: _write(process_folder() / state / f"{split}.json", folder.root, of, categories, notes)
            for split, of in images.items()
        }
    return _converted[state]


@cache
def process_folder() -> Path:
    """A folder for the files of this process, removed at its end, or after a kill by the next process."""
    until_the_end = contextlib.ExitStack()
    atexit.register(until_the_end.close)
    return until_the_end.enter_context(temporary_folder(_FOLDER, mode=0o700))


def _categories(recognised: Recognised, images: Mapping[str, list[ReadImage]]) -> list[dict[str, Any]]:
    """Numbers the categories from 1: 0 means background to label maps and phones."""
    found = {made["category"] for of in images.values() for image in of for made in image.objects}
    entries = recognised.categories or [{"name": name} for name in sorted(found)]
    return [{"id": number, **entry} for number, entry in enumerate(entries, start=1)]


def _write(
    file: Path, root: str, images: list[ReadImage], categories: list[dict[str, Any]], notes: list[str]
) -> CocoForm:
    """Writes a split's COCO file, with names relative to the deepest folder that has all images."""
    folders = {parent_of(image.path) for image in images}
    common = paths.common_folder([f"/{folder}" for folder in folders]) or "/"
    start = len(common.rstrip("/"))
    ids: dict[str, int] = {}
    for category in categories:
        ids.setdefault(category["name"], category["id"])
    faults: list[tuple[int, Fault]] = []

    def entries() -> Iterator[dict[str, Any]]:
        for number, image in enumerate(images, start=1):
            faults.extend((number, fault) for fault in image.faults)
            size = {"width": image.size[0], "height": image.size[1]} if image.size else {}
            yield {"id": number, "file_name": f"/{image.path}"[start + 1 :], **size}

    def annotations() -> Iterator[dict[str, Any]]:
        annotation_id = 0
        for number, image in enumerate(images, start=1):
            for made in image.objects:
                annotation_id += 1
                category = ids[made.pop("category")]
                yield {"id": annotation_id, "image_id": number, "category_id": category, "iscrowd": 0, **made}

    with new_file(file, durable=False) as output:
        output.write(b'{"categories": ' + serialize(categories))
        for key, values in (("images", entries()), ("annotations", annotations())):
            output.write(f', "{key}": ['.encode())
            for place, value in enumerate(values):
                output.write((b",\n" if place else b"") + serialize(value))
            output.write(b"]")
        output.write(b"}\n")
    folder = paths.join(root, common.strip("/")) if common != "/" else root
    return CocoForm(SplitFiles(str(file), folder, notes=tuple(notes)), faults)
