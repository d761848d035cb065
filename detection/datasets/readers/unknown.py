"""The refusal of a folder in no known format: what it looks like, and what to do."""

import re
from collections import Counter

from detection.datasets.readers.folder import LABELS, Folder, some
from detection.storage import paths
from detection.storage.files import read_range
from schemas.errors import DataError

_HEAD = 4096  # bytes of a file that show its kind
_EXPORT = "Export it as COCO or YOLO there"
_FIFTYONE = ("FiftyOne's data set", "Export it as fiftyone.types.COCODetectionDataset")
_LABEL_STUDIO = ("Label Studio's own format", "Export it as COCO or YOLO with images there")
# Suffix -> expressions that the first bytes of a file match, name of its kind, and what to do; the first one counts.
_KINDS = {
    ".json": (
        ((b'"shapes"', b'"imagePath"'), "labelme's JSON", "Convert it with labelme2coco or `labelme2yolo`"),
        ((b'"_via_',), "the project of VIA", "Export annotations as COCO there"),
        ((b'"regions"', b'"filename"'), "VIA's JSON", "Export annotations as COCO there"),
        ((b'"annotations"', b'"data"', b'"result"'), *_LABEL_STUDIO),
        ((b'"(rectangle|polygon|brush)labels"',), *_LABEL_STUDIO),
        ((b'"classTitle"',), "Supervisely's JSON", _EXPORT),
        ((b'"coordinates"', b'"image"'), "CreateML's JSON", _EXPORT),
        ((b'"items"', b'"label_id"'), "Datumaro's JSON", "Convert it: datum convert -f coco"),
        ((b'"samples"', b'"\\$oid"|"info"'), *_FIFTYONE),
        ((b'"classes"', b'"labels"', b'"bounding_box"'), *_FIFTYONE),
        ((b'"images"',), "a COCO file without lists of images, annotations and categories", "Write all three"),
    ),
    ".xml": (
        ((b"<annotations", b"<image"), "CVAT's XML", "Export it as COCO 1.0 or YOLO there"),
        ((b"<annotations", b"<version>"), "CVAT's XML", "Export it as COCO 1.0 or YOLO there"),
        ((b"<annotation", b"<polygon"), "LabelMe's XML", "Export it as COCO"),
        ((b"<dataset", b"<images>"), "dlib's XML", "Convert it with globox or Datumaro"),
    ),
    ".csv": (
        ((b"rectanglelabels",), *_LABEL_STUDIO),
        ((b",",), "a CSV with other columns", "Begin it with a line filename,class,xmin,ymin,xmax,ymax"),
    ),
    ".txt": (
        ((b"difficult|gsd:",), "DOTA's texts", "Export it as COCO"),
        ((rb"(?m)^[A-Za-z]\S*( -?[\d.]+){14}",), "KITTI's texts", _EXPORT),
    ),
    ".parquet": (((b"PAR1",), "a data set of the Hugging Face hub", "Write its images and a COCO file"),),
    ".arrow": (((b"",), "a data set of the Hugging Face hub", "Write its images and a COCO file"),),
}


def refusal(folder: Folder) -> DataError:
    """Returns the error for a folder in which no reader found a data set, in at most six lines."""
    suffixes = Counter(paths.suffix(path).lower() or "no suffix" for path in folder.states)
    counted = ", ".join(f"{count:,} {suffix}" for suffix, count in suffixes.most_common(5)) or "no file"
    return DataError(
        f"{folder.root}: no data set recognised; files: {counted}.\n"
        f"{_likeness(folder)}\n"
        "Formats: COCO, YOLO (data.yaml or classes.txt), PASCAL VOC (XML), CSV of the Object Detection API or of Open\n"
        "  Images, TFRecords with train, val or test in their names, Examples. Docs: data.md.\n"
        "Files elsewhere: --set data.splits.train.annotations=FILE --set data.splits.train.images=DIR (and eval);\n"
        "  TFRecords: --set data.splits.train.records=PATTERN."
    )


def _likeness(folder: Folder) -> str:
    for suffix, kinds in _KINDS.items():
        for path in [path for path in folder.states if path.lower().endswith(suffix)][:3]:
            head = read_range(paths.join(folder.root, path), 0, _HEAD)
            for parts, name, remedy in kinds:
                if all(re.search(part, head) for part in parts):
                    return f"This looks like {name} ({path}). {remedy}."
    images = folder.images
    if not images:
        has_labels = any(path.lower().endswith(LABELS) for path in folder.states)
        beside, remedy = (
            (" beside the labels", "Copy them there, or export with images") if has_labels else ("", "Check the path")
        )
        return f"There are no images{beside}. {remedy}."
    texts = [path for path in folder.states if path.endswith(".txt")]
    if texts:
        return f"There are texts, but none has the name of an image and lines as YOLO's: {some(texts)}."
    return f"These are images without labels: {some(images)}. Label them, and export COCO or YOLO."
