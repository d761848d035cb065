"""Test-time augmentation: detects on several views of each image and fuses the boxes.

An exported model resizes every image to its input, so a view changes the pixels: it mirrors them;
for a scale below 1, it adds a margin to the right and below, so that objects become smaller in
the input; for a scale above 1, it crops the four corners of the image, so that objects become
larger.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from detection.images.decode import decode_rgb
from detection.inference.box_fusion import Boxes, Floats, box_ious, fuse_boxes
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.results import Results, results_from_outputs
from detection.types import EncodedImage
from schemas import serving
from schemas.config.evaluate import ViewsConfig
from schemas.errors import DataError

Array = npt.NDArray[Any]

_MARGIN = (124, 116, 104)  # ImageNet's mean, which most networks normalize to 0
_CUT = 0.01  # fraction of a crop's side: a box this close to an inner edge of the crop counts as cut off
_SAME_OBJECT = 0.55  # IoU of boxes of the same object: google/automl's threshold of fusion


class View(NamedTuple):
    """A transformation of the images before detection.

    scale: size of the objects in the model's input, relative to the unchanged image.
    flip: mirror the image horizontally.
    """

    scale: float
    flip: bool


def list_views(config: ViewsConfig) -> list[View]:
    """Returns the views, the unchanged image first; with `flip`, each scale is also mirrored."""
    scales = [1.0, *(scale for scale in dict.fromkeys(config.scales) if scale != 1.0)]
    return [View(scale, flip) for scale in scales for flip in ((False, True) if config.flip else (False,))]


def augmented(
    detector: SignatureDetector, config: ViewsConfig, *, batch_size: int
) -> "SignatureDetector | AugmentedDetector":
    """Returns the detector with the views of a configuration, or the detector itself without views.

    Raises:
        DataError: the model has masks or keypoints, which cannot be fused.
    """
    if config.is_empty:
        return detector
    _require_boxes_only(detector)
    return AugmentedDetector(detector, list_views(config), batch_size=batch_size)


class _Cutout(NamedTuple):
    """A part of an image for the detector.

    view: number of its view.
    window: (ymin, xmin, ymax, xmax) in pixels of the image; may extend beyond the image.
    flip: mirrored.
    """

    view: int
    window: tuple[int, int, int, int]
    flip: bool


class AugmentedDetector:
    """A detector that detects on several views and fuses their boxes.

    Args:
        detector: exported model without masks and keypoints.
        views: views, as from `list_views`.
        batch_size: images per call of the model.
    """

    def __init__(self, detector: SignatureDetector, views: Sequence[View], *, batch_size: int) -> None:
        self._detector = detector
        self._views = views
        self._batch_size = batch_size

    def detect(self, images: Sequence[EncodedImage], *, with_masks: bool = True) -> list[Results]:
        """Detects objects as `SignatureDetector.detect` does, with at most the model's number per image.

        Raises:
            DataError: the model cannot read an image.
        """
        del with_masks  # the model has none
        if not images:
            return []
        plain = self._detector.outputs(images)
        parts = [[part for n, view in enumerate(self._views) for part in _parts(n, view, image)] for image in images]
        others = iter(self._detect_others(images, parts))
        results = []
        for number, image in enumerate(images):
            rows = [{name: value[number] for name, value in plain.items()}, *islice(others, len(parts[number]) - 1)]
            results.append(_fuse(rows, parts[number], len(self._views), image))
        return results

    def _detect_others(
        self, images: Sequence[EncodedImage], parts: Sequence[Sequence[_Cutout]]
    ) -> Iterator[dict[str, Array]]:
        """Detects on all parts except the first of each image, which is the unchanged image; outputs per part."""
        encoded = (part for image, own in zip(images, parts, strict=True) for part in _encode(image, own[1:]))
        while batch := list(islice(encoded, self._batch_size)):
            outputs = self._detector.outputs(batch)
            for index in range(len(batch)):
                yield {name: value[index] for name, value in outputs.items()}


def _parts(number: int, view: View, image: EncodedImage) -> list[_Cutout]:
    """Returns the parts of a view: one that covers the image, or four smaller ones at its corners."""
    height, width = (max(1, round(side / view.scale)) for side in (image.height, image.width))
    tops = sorted({0, max(0, image.height - height)})
    lefts = sorted({0, max(0, image.width - width)})
    return [_Cutout(number, (top, left, top + height, left + width), view.flip) for top in tops for left in lefts]


def _encode(image: EncodedImage, parts: Sequence[_Cutout]) -> Iterator[EncodedImage]:
    """Crops the parts of an image and encodes them losslessly."""
    pixels = decode_rgb(image.encoded).numpy() if parts else np.empty((0, 0, 3), np.uint8)
    for part in parts:
        top, left, bottom, right = part.window
        canvas = np.empty((bottom - top, right - left, 3), np.uint8)
        canvas[:] = _MARGIN
        shown = pixels[top:bottom, left:right]
        canvas[: shown.shape[0], : shown.shape[1]] = shown
        file = io.BytesIO()
        Image.fromarray(canvas[:, ::-1] if part.flip else canvas).save(file, "BMP")
        yield image._replace(encoded=file.getvalue(), height=bottom - top, width=right - left)


def _fuse(rows: Sequence[Mapping[str, Array]], parts: Sequence[_Cutout], views: int, image: EncodedImage) -> Results:
    """Maps the boxes of all parts to the image and fuses them."""
    size = np.array([image.height, image.width] * 2, np.float64)
    found = [_boxes_of_part(outputs, part, size) for outputs, part in zip(rows, parts, strict=True)]
    parts_of_view = [[index for index, part in enumerate(parts) if part.view == view] for view in range(views)]
    limits = [_uncut_limits(part.window, size) / size for part in parts]
    fused = fuse_boxes(
        [_join([found[index] for index in indices]) for indices in parts_of_view],
        windows=[np.stack([limits[index] for index in indices]) for indices in parts_of_view],
        iou_threshold=_SAME_OBJECT,
    )
    max_detections = len(rows[0][serving.SCORES])
    result = {
        serving.BOXES: fused.boxes[np.newaxis, :max_detections],
        serving.SCORES: fused.scores[np.newaxis, :max_detections],
        serving.CLASSES: fused.classes[np.newaxis, :max_detections],
        serving.COUNT: np.array([min(max_detections, len(fused.scores))]),
    }
    return results_from_outputs(result, [image])[0]


def _boxes_of_part(outputs: Mapping[str, Array], part: _Cutout, size: Floats) -> Boxes:
    """Returns the detections of a part, normalized to the image, without boxes cut off by the part."""
    count = int(outputs[serving.COUNT])
    boxes = outputs[serving.BOXES][:count].astype(np.float64)
    if part.flip:
        boxes = np.stack([boxes[:, 0], 1.0 - boxes[:, 3], boxes[:, 2], 1.0 - boxes[:, 1]], axis=1)
    top, left, bottom, right = part.window
    pixels = boxes * np.array([bottom - top, right - left] * 2, np.float64) + [top, left, top, left]
    limits = _uncut_limits(part.window, size)
    clipped = np.clip(pixels / size, 0.0, 1.0)
    kept = ((pixels[:, :2] >= limits[:2]) & (pixels[:, 2:] <= limits[2:])).all(axis=1)
    kept &= (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
    if part.window == (0, 0, *size[:2]):
        kept, clipped = np.ones(count, bool), boxes  # unchanged
    scores = outputs[serving.SCORES][:count].astype(np.float64)
    return Boxes(clipped[kept], scores[kept], outputs[serving.CLASSES][:count].astype(np.int64)[kept])


def _uncut_limits(window: tuple[int, int, int, int], size: Floats) -> Floats:
    """Returns the limits (ymin, xmin, ymax, xmax) in pixels of boxes that a window does not cut off."""
    low, high = np.array(window[:2], np.float64), np.array(window[2:], np.float64)
    margin = _CUT * (high - low)
    return np.concatenate([np.where(low > 0, low + margin, -np.inf), np.where(high < size[:2], high - margin, np.inf)])


def _join(parts: Sequence[Boxes]) -> Boxes:
    """Joins overlapping parts of a view, keeping the best box of each object."""
    if len(parts) == 1:
        return parts[0]
    boxes, scores, classes = (np.concatenate(values) for values in zip(*parts, strict=True))
    origins = np.repeat(np.arange(len(parts)), [len(part.scores) for part in parts])
    kept: list[int] = []
    for row in np.lexsort((*boxes.T, classes, -scores)):
        others = [other for other in kept if classes[other] == classes[row] and origins[other] != origins[row]]
        if not (box_ious(boxes[others], boxes[row]) > _SAME_OBJECT).any():
            kept.append(int(row))
    return Boxes(boxes[kept], scores[kept], classes[kept])


def _require_boxes_only(detector: SignatureDetector) -> None:
    """Detects on a gray image, as only the outputs of a call are the same for every kind of model."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), _MARGIN).save(file, "BMP")
    outputs = detector.outputs([EncodedImage(0, "a gray image", file.getvalue(), height=64, width=64)])
    more = [name for name in (serving.MASKS, serving.KEYPOINTS) if name in outputs]
    if more:
        raise DataError(
            f"test-time augmentation only fuses boxes, but the model also returns {', '.join(more)}. Detect without it."
        )
