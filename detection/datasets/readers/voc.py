"""PASCAL VOC: an XML file for each image, and lists of a split's images.

Corners are pixels, counted from 1 and inclusive in VOC itself (The PASCAL VOC Challenge 2007 Development Kit, section
4.2); other tools write pixels counted from 0, or the edges of the box.  `corners_of` finds out which.
"""

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

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
    some,
    stem_of,
)
from schemas.artifacts import TRAIN_SPLIT
from schemas.quoting import one_line

_LOOKED_AT = 5  # XML files until it is clear that they are of another kind
_SIDES = ("xmin", "ymin", "xmax", "ymax")
# How corners are meant -> what is added to the first and to the last one to make edges.
_OFFSETS = {"from_1": (-1, 0), "from_0": (0, 1), "edges": (0, 0)}
_MEANINGS = {
    "from_1": "pixels counted from 1, the last one inside, as VOC's own",
    "from_0": "pixels counted from 0, the last one inside",
    "edges": "edges of the boxes",
}
# What tools that write edges leave as the source of an image.
_EDGES = {"Unknown": "LabelImg", "MyDatabase": "Label Studio", "": "FiftyOne"}
_ENTITY = re.compile(rb"<!\s*(DOCTYPE|ENTITY)")


def recognise(folder: Folder) -> Recognised | None:
    """Recognises a folder with XML annotations of VOC's form; None: it has none."""
    files = folder.with_suffix(".xml")
    heads = [content for file in files[:_LOOKED_AT] if b"<annotation" in (content := folder.content(file))]
    if not any(b"<bndbox" in head or b"<object" not in head for head in heads):
        return None
    notes: list[str] = []
    of_image: dict[str, str] = {}
    lost: list[str] = []
    for file in files:
        image = folder.image_named(file, near=file) or _named_inside(folder, file)
        if image is None or of_image.setdefault(image, file) != file:
            lost.append(file)
    if lost:
        notes.append(f"{len(lost):,} XML files have no image of their own, or several: {some(lost)}")
    splits = _lists(folder, of_image, notes)
    if not splits:
        splits = by_folders(sorted(of_image))
        notes += left_out(set(folder.images).difference(of_image), "images have no XML")
    return Recognised(
        "PASCAL VOC",
        parent_of(files[0]),
        splits,
        partial(_read, folder, of_image),
        notes=notes,
        finish=partial(_finish, folder.corners),
    )


def _named_inside(folder: Folder, file: str) -> str | None:
    tree = _tree(folder, file)
    name = None if isinstance(tree, str) else tree.findtext("filename")
    return folder.image_named(name, near=file) if name else None


def _lists(folder: Folder, of_image: Mapping[str, str], notes: list[str]) -> dict[str, list[str]]:
    """Reads ImageSets/Main/{train,val,...}.txt; an image without XML is left out: whether it is empty nobody knows."""
    files = {stem_of(path): path for path in folder.with_suffix(".txt") if "/imagesets/main/" in f"/{path}".lower()}
    if TRAIN_SPLIT in files:
        files.pop("trainval", None)
    by_stem = {stem_of(image): image for image in of_image}
    splits: dict[str, list[str]] = {}
    unknown: list[str] = []
    for name, split in SPLIT_NAMES.items():
        lines = folder.text(files[name]).splitlines() if name in files else []
        for stem in dict.fromkeys(line.split()[0] for line in lines if line.split()):
            image = by_stem.get(stem) or by_stem.get(stem_of(stem))
            splits.setdefault(split, []).append(image) if image else unknown.append(stem)
    notes += left_out(unknown, "images of the lists have no XML")
    if splits:
        notes += left_out(of_image.keys() - set().union(*splits.values()), "images are in no list")
    return {split: list(dict.fromkeys(images)) for split, images in splits.items()}


def _read(folder: Folder, of_image: Mapping[str, str], *place: str) -> ReadImage:
    """Reads an image's XML; boxes are corners until `_finish`."""
    path = place[0]
    file = of_image[path]
    tree, image = _tree(folder, file), ReadImage(path, None)
    if isinstance(tree, str):
        image.faults.append(Fault(folder.shown(file), tree))
        return image
    width, height = (int(finite(tree.findtext(f"size/{side}")) or 0) for side in ("width", "height"))
    image.size = (width, height) if width > 0 and height > 0 else folder.size(path)  # some tools write 0
    image.source = tree.findtext("source/database")
    for number, element in enumerate(tree.findall("object"), start=1):
        where = f"{folder.shown(file)}: object {number}"
        name = (element.findtext("name") or "").strip()
        corners = [finite(element.findtext(f"bndbox/{side}")) for side in _SIDES]
        if not name:
            image.faults.append(Fault(where, "has no name. Write one, or remove the object"))
        elif None in corners:
            listed = ", ".join(f"{side} {one_line(str(element.findtext(f'bndbox/{side}')))[:40]!r}" for side in _SIDES)
            image.faults.append(Fault(where, f"bndbox: {listed}: four finite numbers are expected. Correct them"))
        else:
            difficult = (element.findtext("difficult") or "0").strip() not in ("0", "")
            image.objects.append(
                {"category": name, "corners": corners} | ({"iscrowd": 1, "difficult": 1} if difficult else {})
            )
    return image


def _tree(folder: Folder, file: str) -> ET.Element | str:
    """Parses a file; a text says why it is no annotation."""
    content = folder.content(file)
    # Entities can name other files, and grow to any size: no annotation tool writes them.
    if _ENTITY.search(content.replace(b"\0", b"")):
        return "declares a document type or an entity. Remove the declaration"
    try:
        return ET.fromstring(content)
    except (ET.ParseError, ValueError, LookupError) as error:
        return f"no XML ({error}). Write the file again"


def _finish(corners: str, images: Sequence[ReadImage]) -> list[str]:
    """Makes boxes of the corners of all images, and says what the corners were taken for."""
    kind, why = (corners, "data.voc_corners") if corners in _OFFSETS else corners_of(images)
    first, last = _OFFSETS[kind]
    for image in images:
        for made in image.objects:
            x_min, y_min, x_max, y_max = made.pop("corners")
            made["bbox"] = [x_min + first, y_min + first, x_max - x_min + last - first, y_max - y_min + last - first]
    difficult = sum("difficult" in made for image in images for made in image.objects)
    notes = [f"corners are {_MEANINGS[kind]} ({why}); data.voc_corners decides otherwise"]
    if difficult:
        notes.append(
            f"{difficult:,} objects are marked as difficult: not trained on, ignored in evaluation, like crowds"
        )
    return notes


def corners_of(images: Sequence[ReadImage]) -> tuple[str, str]:
    """Finds out how corners are meant, by those on the borders of their images; returns a key of _OFFSETS, and why."""
    boxes = [(made["corners"], image.size) for image in images if image.size for made in image.objects]
    starts = any(min(corners[:2]) <= 0 for corners, _ in boxes)
    ends = any(corners[2] >= width or corners[3] >= height for corners, (width, height) in boxes)
    if starts:
        # Boxes that are cut by the image end all at its last pixel; others end there as often as at the ones before.
        left = Counter(side - end for corners, size in boxes for side, end in zip(size, corners[2:], strict=True))
        if not ends and left[1] > max(1, left[2] + left[3]):
            return "from_0", "some begin at 0, several end at the image's last pixel, and none at its size"
        return "edges", "some begin at 0"
    if tool := next((_EDGES[image.source] for image in images if image.source in _EDGES), None):
        return "edges", f"as {tool} writes them"
    return "from_1", "none begins at 0" + (", some end at the image's size" if ends else "")
