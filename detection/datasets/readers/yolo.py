"""YOLO: a text of labels for each image, and a `data.yaml`, `obj.data` or `classes.txt` with the names of the classes.

A line is `class x_center y_center width height` in fractions of the image, or `class x y x y x y ...` for a polygon,
or a box followed by keypoints where `kpt_shape` says so.  Source: Ultralytics' documentation of its formats; paths in
`data.yaml` are those of the machine that wrote it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import yaml

from detection.datasets.masks import mask_box
from detection.datasets.readers.folder import (
    SPLIT_NAMES,
    Fault,
    Folder,
    ReadImage,
    Recognised,
    by_folders,
    finite,
    left_out,
    parent_of,
    slashed,
    some,
    stem_of,
)
from detection.datasets.splits import BOX_FORMS
from schemas.errors import DataError
from schemas.quoting import one_line

_NAMES = ("classes.txt", "obj.names", "labels.txt", "class.names", "_darknet.labels")
_FAR = 2  # fractions beyond are pixels, or not labels


def recognise(folder: Folder) -> Recognised | None:
    """Recognises a folder with labels in YOLO's format; None: it has none.

    Raises:
        DataError: a `data.yaml` that names no images, or images without any label.
    """
    for file in folder.with_suffix(".yaml", ".yml", ".data"):
        if "/" in file and not folder.anywhere:
            break  # its paths are relative to its own folder
        description = _description(folder, file)
        if description is not None:
            return _described(folder, file, description)
    named = next((path for path in folder.with_suffix(*_NAMES) if path.rpartition("/")[2].lower() in _NAMES), None)
    named = named or next(
        (path for path in folder.with_suffix(".yaml", ".yml") if _described_names(folder, path)), None
    )
    labels = {path: text for path in folder.images if (text := _label_file(folder, path)) and folder.is_usual(text)}
    if not labels or (named is None and not _looks_like_labels(folder, labels.values())):
        return None
    if named is None and folder.with_suffix(".xml"):
        return None  # the names of the classes are there
    names = (
        (_described_names(folder, named) or _named(folder, named))
        if named
        else [str(number) for number in range(_classes(folder, labels.values()))]
    )
    notes = [] if named else ["no classes.txt or data.yaml names the classes: they are called by their numbers"]
    places = {parent_of(path) for path in labels}  # images of other folders may be anything
    splits = by_folders(path for path in folder.images if parent_of(path) in places)
    title = f"YOLO ({named or 'texts beside the images'})"
    return _recognised(folder, Recognised(title, named or "", splits, notes=notes), names, {})


def _described(folder: Folder, file: str, description: Mapping[str, Any]) -> Recognised:
    names, notes = _class_names(folder, file, description), []
    splits: dict[str, list[str]] = {}
    for key, split in SPLIT_NAMES.items():
        entries = description.get(key)
        for entry in entries if isinstance(entries, list) else [entries]:
            if entry and isinstance(entry, str):
                images = _images(folder, file, str(description.get("path") or ""), entry)
                if images is None:
                    notes.append(f"{file} names {key}: {one_line(entry)}, which is not there")
                    continue
                splits.setdefault(split, []).extend(images)
    splits = {split: list(dict.fromkeys(images)) for split, images in splits.items() if images}
    if not splits:
        raise DataError(
            f"{folder.shown(file)}: YOLO's, but none of the images that train and val name are below {folder.root}. "
            "Copy them there, or correct train and val."
        )
    notes += left_out(set(folder.images).difference(*splits.values()), f"images are not named by {file}")
    return _recognised(folder, Recognised(f"YOLO ({file})", file, splits, notes=notes), names, description)


def _recognised(folder: Folder, data: Recognised, names: Sequence[str], description: Mapping[str, Any]) -> Recognised:
    """Completes what was found with the labels of the images, and the categories."""
    labels = {path: _label_file(folder, path) for images in data.splits.values() for path in images}
    if not any(labels.values()):
        image = next(iter(labels))
        raise DataError(
            f"{folder.shown(data.file)}: YOLO's, but no image has a text with labels, such as "
            f"{_candidates(image)[0]} for {image}. Copy the labels there."
        )
    notes = list(data.notes)
    places = {parent_of(path) for path in labels.values() if path}
    texts = (path for path in folder.states if path.lower().endswith(".txt") and parent_of(path) in places)
    alone = (path for path in texts if stem_of(path).lower() not in folder.by_stem)
    notes += left_out((path for path in alone if _looks_like_labels(folder, [path])), "texts with labels have no image")
    for split, images in data.splits.items():
        without = [path for path in images if labels[path] is None]
        if without:
            notes.append(
                f"{len(without):,} of {len(images):,} images of {split} have no text with labels, and so no objects: "
                f"{some(without)}"
            )
    shape: Any = description.get("kpt_shape")
    points = (int(shape[0]), int(shape[1])) if _is_shape(shape) else None
    categories: list[dict[str, Any]] = [{"name": name} for name in names]
    if points:
        named = description.get("kpt_names") or {}
        keypoints = (named.get(0) if isinstance(named, dict) else named) or [str(n) for n in range(points[0])]
        categories = [category | {"keypoints": list(map(str, keypoints))} for category in categories]
    read = partial(_read, folder, labels, names, points)
    return replace(data, read=read, categories=categories, finish=partial(_finish, names), notes=notes)


def _description(folder: Folder, file: str) -> Mapping[str, Any] | None:
    """Reads a file with `names` and a split; None: it is another file."""
    content = _yaml(folder, file)
    return content if content and "names" in content and content.keys() & SPLIT_NAMES.keys() else None


def _yaml(folder: Folder, file: str) -> dict[Any, Any] | None:
    try:
        text = folder.text(file)
        if file.lower().endswith(".data"):  # Darknet's
            pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
            content: Any = {key.strip(): value.strip() for key, _, value in pairs}
        else:
            content = yaml.safe_load(text.replace("\t", " "))
    except (DataError, yaml.YAMLError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _class_names(folder: Folder, file: str, description: Mapping[str, Any]) -> list[str]:
    names = description["names"]
    if isinstance(names, str):  # a file of names, as Darknet's, or a single one
        found = next((path for path in folder.states if path.endswith(slashed(names).rpartition("/")[2])), None)
        return _named(folder, found) if found else [names]
    if isinstance(names, dict):
        try:
            numbered = {int(number): str(name) for number, name in names.items()}
        except (TypeError, ValueError):
            numbered = {}
        if not numbered or not 0 <= min(numbered) <= max(numbered) < 10_000:
            raise DataError(f"{folder.shown(file)}: names: numbers from 0 with a name each are expected. Correct them.")
        return [numbered.get(number, str(number)) for number in range(max(numbered) + 1)]
    if not isinstance(names, list) or not names:
        raise DataError(f"{folder.shown(file)}: names: a list of the classes' names is expected. Correct it.")
    return list(map(str, names))


def _described_names(folder: Folder, file: str) -> list[str]:
    """Reads the names of a description without splits, as supervision writes it; []: it is another file."""
    description = _yaml(folder, file) if file.lower().endswith((".yaml", ".yml")) else None
    return _class_names(folder, file, description) if description and description.get("names") else []


def _named(folder: Folder, file: str) -> list[str]:
    return [line.strip() for line in folder.text(file).splitlines() if line.strip()]


def _images(folder: Folder, file: str, base: str, entry: str) -> list[str] | None:
    """Finds the images that `train` or `val` names: below a folder, or in a list; None if there are none."""
    places = _ends(file, f"{slashed(base)}/{slashed(entry)}")
    for place in places:
        if place in folder.states:
            return _listed(folder, place)
        if folder.folder_exists(place):
            return folder.below(place)
    return folder.below(parent_of(file)) if not places or slashed(entry) in (".", "./") else None


def _ends(file: str, path: str) -> list[str]:
    """Lists candidates for a path of another machine: its ends, longest first, beside the file or below the root."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    return [place for end in ends for place in (f"{parent_of(file)}/{end}".lstrip("/"), end)]


def _listed(folder: Folder, file: str) -> list[str]:
    """The images of a list: as they are written, or found by the ends of their paths."""
    found = []
    for line in folder.text(file).splitlines():
        if line.strip():
            places = _ends(file, slashed(line))
            found.append(next((place for place in places if place in folder.states), places[1] if places else ""))
    return found


def _candidates(image: str) -> list[str]:
    """Lists candidates for the labels of an image: `labels` in place of the last `images`, or beside it."""
    stem = image.rpartition(".")[0]
    parts = stem.split("/")
    places = []
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[:-1][::-1].index("images")
        places.append("/".join([*parts[:last], "labels", *parts[last + 1 :]]))
    places += [stem, "/".join([*parts[:-1], "labels", parts[-1]]), "/".join([*parts[:-2], "labels", parts[-1]])]
    places.append("/".join(["labels", *parts]))
    return [f"{place}.txt".lstrip("/") for place in dict.fromkeys(places)]


def _label_file(folder: Folder, image: str) -> str | None:
    return next((found for place in _candidates(image) if (found := folder.by_lower.get(place.lower()))), None)


def _looks_like_labels(folder: Folder, labels: Iterable[str]) -> bool:
    """Returns whether the first texts with content have lines of five or more numbers."""
    lines = [line for path in list(labels)[:20] for line in folder.text(path).splitlines()[:5] if line.strip()]
    return bool(lines) and all(len(line.split()) >= 5 and _numbers(line.split()) is not None for line in lines)


def _classes(folder: Folder, labels: Iterable[str]) -> int:
    numbers = [_numbers(line.split()[:1]) for path in labels for line in folder.text(path).splitlines() if line.split()]
    return 1 + max((int(values[0]) for values in numbers if values and 0 <= values[0] < 10_000), default=0)


def _read(
    folder: Folder, labels: Mapping[str, str | None], names: Sequence[str], points: tuple[int, int] | None, *place: str
) -> ReadImage:
    """Reads an image's labels; a missing file means an image without objects."""
    path = place[0]
    image = ReadImage(path, folder.size(path) if path in folder.states else None)
    file = labels[path]
    if file is None or image.size is None:
        return image
    for number, line in enumerate(folder.text(file).splitlines(), start=1):
        values = line.split()
        if values:
            made = _object(values, names, points, image.size)
            if isinstance(made, str):
                image.faults.append(Fault(f"{folder.shown(file)}:{number}", made))
            else:
                image.objects.append(made)
    return image


def _object(
    texts: Sequence[str], names: Sequence[str], points: tuple[int, int] | None, size: tuple[int, int]
) -> dict[str, Any] | str:
    """Makes an annotation of a line; returns a text if the line is invalid: the reason."""
    values, line = _numbers(texts), one_line(" ".join(texts)[:80])
    if values is None:
        return f"{line!r} are not all finite numbers. Correct the line"
    if not values[0].is_integer() or not 0 <= values[0] < len(names):
        return f"class {texts[0]} of {len(names)}. Correct it, or add its name to the classes"
    if max(map(abs, values[1:]), default=0) > _FAR:
        return f"{line!r}: fractions of the image are expected, from 0 to 1. Correct the line"
    made = _shape(values[1:], points, size)
    if made is None:
        expected = "a polygon's pairs" if points is None else f"{points[0]} keypoints of {points[1]} numbers after them"
        return f"{len(values) - 1} numbers after the class: 4 are expected, or {expected}. Correct the line"
    return {"category": names[int(values[0])], **made}


def _shape(numbers: Sequence[float], points: tuple[int, int] | None, size: tuple[int, int]) -> dict[str, Any] | None:
    """Makes a box, a box with keypoints, or a polygon with its box, in pixels; None if it is none of these."""
    pixels = [value * size[place % 2] for place, value in enumerate(numbers)]
    if points and len(numbers) == 4 + points[0] * points[1]:
        rows = (numbers[start : start + points[1]] for start in range(4, len(numbers), points[1]))
        keypoints = [value for row in rows for value in _keypoint(row, size)]
        labelled = sum(value > 0 for value in keypoints[2::3])
        return {"bbox": BOX_FORMS["centers"](pixels), "keypoints": keypoints, "num_keypoints": labelled}
    if len(numbers) == 4:
        return {"bbox": BOX_FORMS["centers"](pixels)}
    if points or len(numbers) < 6 or len(numbers) % 2:
        return None
    return {"bbox": mask_box([pixels]), "segmentation": [pixels]}


def _keypoint(row: Sequence[float], size: tuple[int, int]) -> tuple[float, float, int]:
    x, y, *given = row
    visible = given[0] if given else 2 * (x != 0 or y != 0)
    return (x * size[0], y * size[1], int(visible)) if visible in (1, 2) else (0, 0, 0)


def _numbers(texts: Sequence[str]) -> list[float] | None:
    values = [value for text in texts if (value := finite(text)) is not None]
    return values if len(values) == len(texts) else None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) == 2 and all(type(n) is int for n in shape) and shape[1] in (2, 3)


def _finish(names: Sequence[str], images: Sequence[ReadImage]) -> list[str]:
    """Says so where classes are counted from 1, or some labels are boxes and others polygons."""
    beyond = sum(f"class {len(names)} of {len(names)}." in fault.message for image in images for fault in image.faults)
    if beyond and not any(made["category"] == names[0] for image in images for made in image.objects):
        return [f"classes seem to be counted from 1: none is 0, {beyond:,} are {len(names)}. Subtract 1 from all"]
    polygons = sum("segmentation" in made for image in images for made in image.objects)
    boxes = sum(len(image.objects) for image in images) - polygons
    return [f"{boxes:,} labels are boxes and {polygons:,} polygons: a mixture"] if boxes and polygons else []
