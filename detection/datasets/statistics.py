"""Statistics of a split: counts that can be computed in parts and merged.

The size does not depend on the number of images: histograms have fixed bins, and
other counts are per category, file format and colour mode.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic.dataclasses import dataclass

from detection.datasets.annotations.entry_rules import is_crowd

# Inner edges of the histograms: N edges make N + 1 bins, the first and the last open.
OBJECTS_EDGES = tuple(float(count) for count in range(1, 101))  # per image; one bin per number, then 100 and more
SIZE_EDGES = tuple(2.0 ** (half / 2) for half in range(29))  # 1..16384 pixels: root of width * height of a box
ASPECT_EDGES = tuple(2.0 ** (half / 2) for half in range(-8, 9))  # 1/16..16: width / height of a box
SIDE_EDGES = tuple(2.0 ** (quarter / 4) for quarter in range(12, 57))  # 8..16384 pixels: width or height of an image
_RELATIVE_EDGES = tuple(2.0 ** (eighth / 8) for eighth in range(-96, 1))  # 1/4096..1: size of a box / image's long side
_IMAGE_ASPECT_EDGES = tuple(2.0 ** (quarter / 4) for quarter in range(-8, 9))  # 1/4..4: width / height of an image

# Upper bounds of COCO's object sizes, square pixels, as in pycocotools' cocoeval.py.  Its
# ranges overlap at their bounds; here, a bound belongs to the larger size.
COCO_SIZES: Mapping[str, float] = {"small": 32.0**2, "medium": 96.0**2, "large": math.inf}

Counts = npt.NDArray[np.int64]
_Histogram = Literal["objects_per_image", "box_sizes", "box_aspects", "widths", "heights"]
_EDGES: Mapping[_Histogram, Sequence[float]] = {
    "objects_per_image": OBJECTS_EDGES,
    "box_sizes": SIZE_EDGES,
    "box_aspects": ASPECT_EDGES,
    "widths": SIDE_EDGES,
    "heights": SIDE_EDGES,
}


@dataclass
class SplitSummary:
    """Counts over the images and annotations of a split.

    images, annotations: numbers of images and annotations, crowds included.
    crowds: annotations with `iscrowd`.
    masks: annotations with a segmentation that is not empty.
    keypoints: annotations with at least one labelled keypoint.
    instances: category id -> annotations, crowds included.
    crowds_of: category id -> crowds.
    masks_of: category id -> annotations other than crowds with a mask.
    images_with: category id -> images with at least one annotation of it.
    coco_sizes: "small", "medium", "large" -> annotations, by `area`, or by the box if
        `area` is not a number.
    objects_per_image, box_sizes, box_aspects, widths, heights: index of a bin -> count,
        without empty bins; `histogram` returns arrays.
    instances_per_image: number of annotations other than crowds -> images with exactly as many.
    relative_sizes: index of a bin -> annotations other than crowds; `sizes_in_images` decodes them.
    min_width, max_width, min_height, max_height: of the images, pixels; None without images.
    formats, modes: file format, colour mode -> images.
    """

    images: int = 0
    annotations: int = 0
    crowds: int = 0
    masks: int = 0
    keypoints: int = 0
    instances: Counter[int] = field(default_factory=Counter)
    crowds_of: Counter[int] = field(default_factory=Counter)
    masks_of: Counter[int] = field(default_factory=Counter)
    images_with: Counter[int] = field(default_factory=Counter)
    coco_sizes: Counter[str] = field(default_factory=Counter)
    objects_per_image: Counter[int] = field(default_factory=Counter)
    box_sizes: Counter[int] = field(default_factory=Counter)
    box_aspects: Counter[int] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    heights: Counter[int] = field(default_factory=Counter)
    instances_per_image: Counter[int] = field(default_factory=Counter)
    relative_sizes: Counter[int] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    min_width: int | None = None
    max_width: int | None = None
    min_height: int | None = None
    max_height: int | None = None

    def add(
        self, annotations: Sequence[Mapping[str, Any]], *, width: int, height: int, image_format: str, color_mode: str
    ) -> None:
        """Adds one image.

        Args:
            annotations: all annotations of the image, in COCO's format: `category_id`, `bbox`
                of four finite numbers (x, y, width, height) in pixels, and optionally `area`,
                `iscrowd`, `segmentation`, `keypoints`.
            width: width of the image in pixels.
            height: height of the image in pixels.
            image_format: file format, such as "jpeg".
            color_mode: colour mode, such as "RGB".
        """
        self.images += 1
        self.annotations += len(annotations)
        self.objects_per_image[bisect_right(OBJECTS_EDGES, len(annotations))] += 1
        self.images_with.update({annotation["category_id"] for annotation in annotations})
        instances = [annotation for annotation in annotations if not is_crowd(annotation)]
        self.instances_per_image[len(instances)] += 1
        self.relative_sizes.update(_relative_bin(annotation["bbox"], width, height) for annotation in instances)
        for annotation in annotations:
            self._add_annotation(annotation)
        self.formats[image_format] += 1
        self.modes[color_mode] += 1
        self.widths[bisect_right(SIDE_EDGES, width)] += 1
        self.heights[bisect_right(SIDE_EDGES, height)] += 1
        self.min_width, self.max_width = _outermost(min, self.min_width, width), _outermost(max, self.max_width, width)
        self.min_height = _outermost(min, self.min_height, height)
        self.max_height = _outermost(max, self.max_height, height)

    def _add_annotation(self, annotation: Mapping[str, Any]) -> None:
        self.instances[annotation["category_id"]] += 1
        if is_crowd(annotation):
            self.crowds += 1
            self.crowds_of[annotation["category_id"]] += 1
        elif annotation.get("segmentation"):
            self.masks_of[annotation["category_id"]] += 1
        self.masks += bool(annotation.get("segmentation"))
        self.keypoints += any((annotation.get("keypoints") or ())[2::3])
        _, _, width, height = annotation["bbox"]
        box_area = max(width, 0) * max(height, 0)
        self.box_sizes[bisect_right(SIZE_EDGES, math.sqrt(box_area))] += 1
        if box_area > 0:
            self.box_aspects[bisect_right(ASPECT_EDGES, width / height)] += 1
        area = annotation.get("area")
        self.coco_sizes[_coco_size(area if isinstance(area, int | float) else box_area)] += 1

    @property
    def objects(self) -> int:
        """Number of annotations other than crowds."""
        return self.annotations - self.crowds

    def objects_of(self) -> Counter[int]:
        """Returns category id -> annotations other than crowds."""
        return self.instances - self.crowds_of

    def merge(self, other: Self) -> Self:
        """Returns a new summary of the images of both; the order does not matter."""
        first, second = vars(self), vars(other)
        extremes: dict[str, Any] = {
            name: _outermost(min if name.startswith("min") else max, first[name], second[name])
            for name in ("min_width", "max_width", "min_height", "max_height")
        }
        sums = {name: first[name] + second[name] for name in first if name not in extremes}
        return type(self)(**sums, **extremes)

    def histogram(self, name: _Histogram) -> Counts:
        """Returns a histogram with its empty bins.

        Returns:
            int64 [N + 1] for the N inner edges of this module: bin i counts
            edges[i - 1] <= value < edges[i]; the first and the last bin are open.
            Boxes without width or height are in no bin of box_aspects.
        """
        counts: Mapping[int, int] = getattr(self, name)
        return np.array([counts.get(index, 0) for index in range(len(_EDGES[name]) + 1)], np.int64)

    def sizes_in_images(self) -> Iterator[tuple[float, float, int]]:
        """Yields the sizes of annotations, without crowds, relative to their images.

        Yields:
            size: square root of the box's area, divided by the longer side of the image; the centre of a bin 9 % wide.
            aspect: width / height of the image; the centre of a bin 19 % wide, at most 4 to 1.
            count: number of annotations.
        """
        for index, count in self.relative_sizes.items():
            size, aspect = divmod(index, len(_IMAGE_ASPECT_EDGES) + 1)
            yield _middle(_RELATIVE_EDGES, size), _middle(_IMAGE_ASPECT_EDGES, aspect), count

    def without(self, part: Self) -> Self:
        """Returns the counts without those of some images; keeps the extremes of width and height."""
        counted = ((name, value) for name, value in vars(self).items() if not name.startswith(("min", "max")))
        return replace(self, **{name: value - getattr(part, name) for name, value in counted})

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON, with sorted text keys."""
        return {
            name: {str(key): value[key] for key in sorted(value)} if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Restores a summary from `as_dict`, whose keys of counters are text."""
        return cls(**value)


def total(summaries: Iterable[SplitSummary]) -> SplitSummary:
    """Merges all summaries; an empty one if there are none."""
    merged = SplitSummary()
    for summary in summaries:
        merged = merged.merge(summary)
    return merged


def _relative_bin(bbox: Sequence[float], width: int, height: int) -> int:
    size = math.sqrt(max(bbox[2], 0) * max(bbox[3], 0)) / max(width, height)
    aspect = bisect_right(_IMAGE_ASPECT_EDGES, width / height)
    return bisect_right(_RELATIVE_EDGES, size) * (len(_IMAGE_ASPECT_EDGES) + 1) + aspect


def _middle(edges: Sequence[float], index: int) -> float:
    """Returns the geometric mean of a bin's edges; for an open bin, its one edge."""
    return math.sqrt(edges[max(index - 1, 0)] * edges[min(index, len(edges) - 1)])


def _coco_size(area: float) -> str:
    if area < COCO_SIZES["small"]:
        return "small"
    return "medium" if area < COCO_SIZES["medium"] else "large"


def _outermost(choose: Callable[..., int], first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return choose(known) if known else None
