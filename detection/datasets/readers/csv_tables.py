"""CSV: a line for each object, as the Object Detection API's tutorials and Open Images write it."""

import csv
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from detection.datasets.readers.folder import Fault, Folder, ReadImage, Recognised, finite, left_out, some, split_named
from detection.datasets.splits import BOX_FORMS
from schemas.artifacts import TRAIN_SPLIT
from schemas.quoting import one_line


class _Columns(NamedTuple):
    """Names of the columns of one kind of table; corners are pixels at the edges, or fractions."""

    title: str
    file_name: str
    category: str
    corners: tuple[str, str, str, str]
    is_fraction: bool


_KINDS = (
    _Columns("CSV of the Object Detection API", "filename", "class", ("xmin", "ymin", "xmax", "ymax"), False),
    _Columns("CSV of Open Images", "ImageID", "LabelName", ("XMin", "YMin", "XMax", "YMax"), True),
)


class _Row(NamedTuple):
    where: str
    values: Mapping[str, str]


class _Tables(NamedTuple):
    """All tables: rows by image and split, and names of Open Images' labels such as /m/01g317."""

    columns: _Columns
    rows: dict[tuple[str, str], list[_Row]]
    names: Mapping[str, str]


def recognise(folder: Folder) -> Recognised | None:
    """Recognises a folder with tables of objects; None: it has none."""
    kinds = {file: columns for file in folder.with_suffix(".csv") if (columns := _columns(folder, file))}
    if not kinds:
        return None
    tables = _Tables(next(iter(kinds.values())), {}, _descriptions(folder))
    notes: list[str] = []
    files: dict[str, list[str]] = {}
    for file in (file for file, kind in kinds.items() if kind is tables.columns):
        files.setdefault(split_named(file) or TRAIN_SPLIT, []).append(file)
    if whole := [file for file in files.get(TRAIN_SPLIT, []) if len(files) > 1 and not split_named(file)]:
        files[TRAIN_SPLIT] = [file for file in files[TRAIN_SPLIT] if file not in whole]
        notes.append(f"{some(whole)} beside the tables of the splits is not read")
    splits: dict[str, list[str]] = {}
    for split, of_split in files.items():
        found: dict[str, str] = {}  # name in a table -> path
        for file in of_split:
            for row in _rows(folder, file):
                name = row.values.get(tables.columns.file_name) or ""
                if name not in found:
                    found[name] = folder.image_named(name, near=file, split=split_named(file)) or name
                tables.rows.setdefault((found[name], split), []).append(row)
        splits[split] = list(dict.fromkeys(found.values()))
    splits = {split: images for split, images in splits.items() if images}
    if not splits:
        return None
    notes += left_out(set(folder.images).difference(*splits.values()), "images are in no table")
    return Recognised(tables.columns.title, next(iter(kinds)), splits, partial(_read, folder, tables), notes=notes)


def _columns(folder: Folder, file: str) -> _Columns | None:
    named = {name.strip() for name in next(iter(_lines(folder, file)), [])}
    return next((kind for kind in _KINDS if {kind.file_name, kind.category, *kind.corners} <= named), None)


def _rows(folder: Folder, file: str) -> list[_Row]:
    [header, *lines] = _lines(folder, file)
    names = [name.strip() for name in header]
    return [
        _Row(f"{folder.shown(file)}:{number}", dict(zip(names, line, strict=False)))
        for number, line in enumerate(lines, start=2)
        if line
    ]


def _lines(folder: Folder, file: str) -> list[list[str]]:
    """Reads a table; [] if it is no CSV."""
    try:
        return list(csv.reader(folder.text(file).lstrip().splitlines(), skipinitialspace=True))
    except csv.Error:
        return []


def _descriptions(folder: Folder) -> dict[str, str]:
    file = next((path for path in folder.with_suffix(".csv") if "class-descriptions" in path), None)
    return {} if file is None else {row[0]: row[1] for row in _lines(folder, file) if len(row) > 1}


def _read(folder: Folder, tables: _Tables, path: str, split: str) -> ReadImage:
    columns = tables.columns
    image = ReadImage(path, folder.size(path) if path in folder.states else None)
    sides = (image.size or (1, 1)) * 2 if columns.is_fraction else (1, 1, 1, 1)
    for where, values in tables.rows[path, split]:
        corners = [finite(values.get(name)) for name in columns.corners]
        edges = [corner * side for corner, side in zip(corners, sides, strict=True) if corner is not None]
        category = (values.get(columns.category) or "").strip()
        width, height = (int(finite(values.get(side)) or 0) for side in ("width", "height"))
        if width > 0 and height > 0:
            image.size = (width, height)
        if not category or len(edges) < len(corners):
            listed = one_line(",".join(str(values.get(name)) for name in (columns.category, *columns.corners)))[:80]
            message = f"{listed!r}: a name and four finite numbers are expected. Correct the line"
            image.faults.append(Fault(where, message))
            continue
        made = {"category": tables.names.get(category, category), "bbox": BOX_FORMS["corners"](edges)}
        image.objects.append(made | ({"iscrowd": 1} if values.get("IsGroupOf") == "1" else {}))
    return image
