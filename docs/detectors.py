"""Tables of all detectors: what the code knows, what `benchmarks.detectors` measured, what others published."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detection.models.registry import FAMILIES

MEASURED = Path(__file__).with_name("detectors.json")
# COCO AP of the weights that `model.weights: coco` or `import-checkpoint` takes, by the name of the page's link.
PUBLISHED: Mapping[str, Mapping[str, str]] = {
    # google/automl, efficientdet/README.md: AP val, and of the lite networks mAP (float).
    "automl": {
        "efficientdet-d0": "34.3",
        "efficientdet-d1": "40.2",
        "efficientdet-d2": "42.5",
        "efficientdet-d3": "47.2",
        "efficientdet-d4": "49.3",
        "efficientdet-d5": "51.2",
        "efficientdet-d6": "52.1",
        "efficientdet-d7": "53.4",
        "efficientdet-d7x": "54.4",
        "efficientdet-lite0": "26.4",
        "efficientdet-lite1": "31.5",
        "efficientdet-lite2": "35.1",
        "efficientdet-lite3": "38.8",
        "efficientdet-lite3x": "42.6",
        "efficientdet-lite4": "43.2",
    },
    # Peterande/D-FINE, README.md: AP val of the networks trained on COCO alone.
    "dfine": {"dfine-n": "42.8", "dfine-s": "48.5", "dfine-m": "52.3", "dfine-l": "54.0", "dfine-x": "55.8"},
    # tensorflow/models, tf2_detection_zoo.md, at the preset's input size: of boxes, or of boxes / keypoints.
    # The one "320x320" resizes to 300 x 300.  MobileNet's with keypoints, 41.7, does not say of what.
    "zoo": {
        "ssd-mobilenet-v1-fpn": "29.1",
        "ssd-mobilenet-v2-fpnlite": "22.2",
        "ssd-mobilenet-v2": "20.2",
        "retinanet-r50": "34.3",
        "retinanet-r101": "35.6",
        "retinanet-r152": "35.4",
        "faster-rcnn-r50-c4": "31.0",
        "faster-rcnn-r101-c4": "37.1",
        "faster-rcnn-r152-c4": "37.6",
        "centernet-r50": "31.2",
        "centernet-r101": "34.2",
        "centernet-r50-v2": "29.5",
        "centernet-mobilenet-v2": "23.4",
        "centernet-hourglass-104": "41.9",
        "centernet-r50-kpts": "29.3 / 50.7",
        "centernet-r50-v2-kpts": "27.6 / 48.2",
        "centernet-hourglass-104-kpts": "40.0 / 61.4",
    },
}
# README's: page and purpose.
_FIRST_CHOICES = {
    "efficientdet-lite0": ("efficientdet", "The default: boxes on phones and CPUs, from weights that come along."),
    "efficientdet-lite2": ("efficientdet", "Better boxes on phones that have time for a larger image."),
    "efficientdet-d0": ("efficientdet", "Boxes on a server without a GPU."),
    "dfine-n": ("dfine", "A transformer without suppression: the best boxes for its size, on CPUs and GPUs."),
    "efficientdet-d4": ("efficientdet", "High accuracy and small objects, on a GPU."),
    "ssd-mobilenet-v2-fpnlite": ("retinanet", "The Object Detection API's detector for phones, with its checkpoints."),
    "retinanet-r50": ("retinanet", "A ResNet and plain convolutions; takes the Object Detection API's RetinaNet, too."),
    "mask-rcnn-r50": ("mask_rcnn", "A mask for each object, besides its box."),
    "centernet-r50-kpts": ("centernet", "Keypoints, such as a person's joints, besides boxes."),
}
_SLOW = 1000  # milliseconds on one core

Table = tuple[tuple[str, ...], Iterator[list[str]]]


def measured_detectors() -> dict[str, dict[str, Any]]:
    """Returns what `benchmarks.detectors` measured, by name; a part that was not measured is missing."""
    return dict(json.loads(MEASURED.read_text(encoding="utf-8")))


def all_detectors() -> Table:
    """Returns header and rows of all detectors, as Markdown."""
    header = ("model.name", "for", "input", "parameters, M", "multiply-adds, G", "COCO AP", "ms", "LiteRT, MB")
    rows = measured_detectors().items()
    return header, ([f"`{name}`", _purpose(name, measured), *_facts(name, measured)] for name, measured in rows)


def first_choices() -> Table:
    """Returns header and rows of README's detectors, as Markdown with links from the root."""
    header = ("model.name", "for", "input", "COCO AP", "ms", "LiteRT, MB")
    measured = measured_detectors()

    def rows() -> Iterator[list[str]]:
        for name, (page, purpose) in _FIRST_CHOICES.items():
            size, _, _, precision, *speed = _facts(name, measured[name])
            yield [f"[`{name}`](docs/{page}.md)", purpose, size, precision.partition("]")[0].lstrip("["), *speed]

    return header, rows()


def measurements() -> Table:
    """Returns header and rows of the machines and days of the measurements."""
    counts = Counter((row["machine"], row["date"]) for row in measured_detectors().values())
    return ("machine", "date", "detectors"), ([*where, str(count)] for where, count in sorted(counts.items()))


def _facts(name: str, measured: Mapping[str, Any]) -> list[str]:
    """Returns input size, parameters, multiply-adds, AP, milliseconds and megabytes."""
    preset = next(family.presets[name] for family in FAMILIES if name in family.presets)
    published = [f"[{values[name]}][{source}]" for source, values in PUBLISHED.items() if name in values]
    return [
        " x ".join(map(str, preset.image_size)),
        _number(measured, "parameters", 1e6),
        _number(measured, "multiply_adds", 1e9),
        *(published or ["-"]),
        _number(measured, "milliseconds", 1),
        _number(measured, "file_bytes", 1e6),
    ]


def _number(measured: Mapping[str, Any], key: str, unit: float) -> str:
    """Formats three significant digits."""
    return f"{float(f'{measured[key] / unit:.3g}'):,g}" if key in measured else "-"


def _purpose(name: str, measured: Mapping[str, Any]) -> str:
    outputs = "boxes, masks" if name.startswith("mask") else "boxes, keypoints" if name.endswith("-kpts") else "boxes"
    if "nano" in name or "pico" in name:
        return f"{outputs}; tests"
    if "lite" in name or "mobilenet" in name:
        return f"{outputs}; phones"
    return f"{outputs}; {'GPUs' if measured.get('milliseconds', _SLOW) >= _SLOW else 'CPUs and GPUs'}"
