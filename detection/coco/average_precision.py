"""Average precision as PASCAL VOC and Open Images define it.

Each detection is compared with the annotation of its category that it overlaps most, and only with this one
(COCO's goes on to the next).  Sources: the development kit of PASCAL VOC (Everingham et al., IJCV 2010) and the
evaluation protocol of the Open Images Challenge; values are equal to the TF Object Detection API's.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from detection.coco.engine.overlaps import box_of_mask, is_empty_rle, overlaps
from detection.coco.metric import Matched, Metric, Records, Values
from detection.coco.metrics import UNDEFINED
from detection.coco.params import FloatArray
from detection.coco.validation.checks import CROWD_WITHOUT_MASK, Checked
from detection.datasets.annotations.entries import Entry
from schemas.metrics import parse_metric


@dataclass(frozen=True)
class AveragePrecision:
    """Area under the precision-recall curve of each category, and their mean.

    name, iou: of the metric.
    difficult: detections of annotations with `difficult` or `ignore` are not counted; False: all annotations count.
    group_weight: weight of a group of objects (the first key of `_GROUP` that an annotation has), of whose detections
        only the best one is counted; 0: none is counted; None: groups are ordinary annotations.
    verified_only: in images with `neg_category_ids`, categories verified to be absent, detections of categories that
        neither this list, nor `pos_category_ids`, nor the annotations have are not counted.
    hierarchical: annotations and positive labels also count for the ancestors of their category, negative labels for
        its descendants.
    pooled: one curve over all categories instead of the mean.
    points: number of recalls where the envelope is sampled; None: its area.
    recall: bounds of the recalls of the curve.
    """

    name: str
    iou: float = 0.5
    difficult: bool = True
    group_weight: float | None = None
    verified_only: bool = False
    hierarchical: bool = False
    pooled: bool = False
    points: int | None = None
    recall: tuple[float, float] = (0.0, 1.0)

    def match(self, checked: Checked, categories: Sequence[Entry], iou_type: str) -> Matched:
        """Matches images; see `Metric`.  The challenge of Open Images does not count groups of masks."""
        ancestors = ancestors_of(categories) if self.hierarchical else {}
        metric = replace(self, group_weight=0.0) if self.group_weight and iou_type == "segm" else self
        annotations = _expanded(checked.annotations, ancestors)
        truths = _grouped(annotations, ("image_id", "category_id"))
        verified = self._verified(checked.images, annotations, ancestors)
        sizes = {image["id"]: image for image in checked.images} if iou_type == "segm" else {}
        rows: list[tuple[Any, ...]] = []
        counts: list[tuple[Any, ...]] = []
        for cell, scores, found in _ranked(checked.detections):
            if verified(*cell):
                tp = metric._true_positives(found, truths.get(cell, []), sizes.get(cell[0]))
                rows += [(*cell, *row) for row in zip(scores.tolist(), tp.tolist(), strict=True) if row[1] >= 0]
        for cell, truth in truths.items():
            ignored, group = metric._flags(truth)
            counts.append((*cell, (~ignored & ~group).sum() + (metric.group_weight or 0.0) * group.sum()))
        return Matched.of(rows, counts)

    def values(self, matched: Matched, category_ids: Iterable[int]) -> Values:
        """Computes AP; see `Metric`."""
        per_category = {category_id: self._curve(rows) for category_id, rows in matched.by_category(category_ids)}
        return Values(self._curve(matched), per_category) if self.pooled else Values.mean_of(per_category)

    def _flags(self, truth: Sequence[Entry]) -> tuple[Any, Any]:
        """Returns which annotations are ignored, and which are groups, bool [G] each."""
        ignored = [self.difficult and bool(one.get("difficult") or one.get("ignore")) for one in truth]
        groups = self.group_weight is not None
        group = [
            groups and next((bool(one[key]) for key in _GROUP if one.get(key) is not None), False) for one in truth
        ]
        return np.array(ignored, bool), np.array(group, bool)

    def _true_positives(self, found: Any, truth: Sequence[Entry], image: Any) -> FloatArray:
        """Returns the weight of each ranked detection of a category in an image: TP > 0, FP 0, not counted -1.

        Annotations without a mask are compared by their boxes, after the others; what matches them is not counted.

        Args:
            found: boxes [D, 4], or COCO results with masks.
            truth: annotations.
            image: `height` and `width` for masks; None: boxes are compared.
        """
        tp = np.zeros(len(found))
        if image is None:
            self._compare(tp, truth, found, [one["bbox"] for one in truth], None, hit=1.0)
            return tp
        masked = [one for one in truth if not _lacks_mask(one)]
        masks = [one["segmentation"] for one in found]
        self._compare(tp, masked, masks, [one["segmentation"] for one in masked], image, hit=1.0)
        boxed = [one for one in truth if _lacks_mask(one)]
        if boxed:
            boxes = [one.get("bbox") or box_of_mask(one["segmentation"], image) for one in found]
            self._compare(tp, boxed, boxes, [one["bbox"] for one in boxed], None, hit=-1.0)
        return tp

    def _compare(
        self, tp: FloatArray, truth: Sequence[Entry], found: Any, shapes: Sequence[Any], image: Any, *, hit: float
    ) -> None:
        """Sets the weights of detections that match an annotation; `hit`: of the first one of each."""
        if not truth or not len(tp):
            return
        ignored, group = self._flags(truth)
        overlap = overlaps(found, shapes, group, image)
        if not group.all():
            best = np.where(group, -1.0, overlap).argmax(axis=1)
            matches = (tp == 0) & (overlap[np.arange(len(tp)), best] >= self.iou)
            tp[_first(best, matches)] = hit
            tp[matches & ignored[best]] = -1.0
        if group.any():
            best = np.where(group, overlap, -1.0).argmax(axis=1)
            in_group = (tp == 0) & (overlap[np.arange(len(tp)), best] >= self.iou)
            tp[in_group] = -1.0
            if self.group_weight:
                tp[_first(best, in_group)] = self.group_weight

    def _verified(
        self, images: Sequence[Entry], annotations: Sequence[Entry], ancestors: Mapping[int, Sequence[int]]
    ) -> Callable[[int, int], bool]:
        if not self.verified_only:
            return lambda image_id, category_id: True
        negative = {one["id"]: one["neg_category_ids"] for one in images if one.get("neg_category_ids") is not None}
        positive = {(one["image_id"], one["category_id"]) for one in annotations}
        labels = ((one["id"], label) for one in images for label in one.get("pos_category_ids") or ())
        positive |= {(image_id, one) for image_id, label in labels for one in (label, *ancestors.get(label, ()))}

        def verified(image_id: int, category_id: int) -> bool:
            if image_id not in negative or (image_id, category_id) in positive:
                return True
            return not {category_id, *ancestors.get(category_id, ())}.isdisjoint(negative[image_id])  # implied, too

        return verified

    def _curve(self, matched: Matched) -> float:
        total = float(matched.counts["count"].sum())
        if total <= 0:
            return UNDEFINED
        rows: Records = matched.detections
        order = np.lexsort((rows["image"], -rows["score"]))  # stable: equal scores of an image keep their order
        tp = rows["tp"][order].astype(np.float64)
        hits = np.cumsum(tp)
        precision, recall = hits / (hits + np.cumsum(tp <= 0)), hits / total
        low, high = self.recall
        inside = (recall >= low) & (recall <= high)
        return envelope_area(precision[inside], recall[inside], self.points)


def envelope_area(precision: FloatArray, recall: FloatArray, points: int | None = None) -> float:
    """Returns the area under the envelope of a precision-recall curve, whose precision never rises with recall.

    Args:
        precision: float64 [N].
        recall: float64 [N], ascending.
        points: mean of the envelope at this number of recalls from 0 to 1, as in VOC 2007; None: area, as since VOC
            2010.
    """
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    if points is None:
        return float((np.diff(recall, prepend=0.0) * envelope).sum())
    at = np.searchsorted(recall, np.linspace(0.0, 1.0, points) - 1e-12)
    return float(np.append(envelope, 0.0)[at].mean())


# Open Images', the Object Detection API's records', COCO's
_GROUP = ("is_group_of", "group_of", CROWD_WITHOUT_MASK, "iscrowd")
_VOC = AveragePrecision("pascal_voc")
_OPEN_IMAGES = AveragePrecision("open_images", difficult=False, group_weight=0.0, hierarchical=True)
_DEFINITIONS = {
    "pascal_voc": _VOC,
    "pascal_voc_11_point": replace(_VOC, points=11),
    "weighted_pascal_voc": replace(_VOC, pooled=True),
    "open_images": _OPEN_IMAGES,
    "open_images_challenge": replace(_OPEN_IMAGES, group_weight=1.0, verified_only=True),
    "precision_at_recall": _VOC,
    "precision_at_recall_verified": replace(_VOC, verified_only=True),
}


@cache
def named_metric(name: str) -> Metric:
    """Returns the metric of a name that `parse_metric` accepts, such as `precision_at_recall_25_75_AP50`."""
    parsed = parse_metric(name)
    return replace(_DEFINITIONS[parsed.kind], name=name, iou=parsed.iou, recall=parsed.recall)


def ancestors_of(categories: Sequence[Entry]) -> dict[int, list[int]]:
    """Returns the ids of each category's ancestors: a `supercategory` is the parent if it names another category.

    The root that Roboflow adds above all classes, named after the project, does not count.
    """
    below = Counter(category.get("supercategory") for category in categories)

    def is_root(category: Entry) -> bool:
        return category.get("supercategory") == "none" and 0 < below[category.get("name")] == len(categories) - 1

    ids = {category.get("name"): category["id"] for category in categories if not is_root(category)}
    parents = {category["id"]: ids.get(category.get("supercategory")) for category in categories}
    ancestors: dict[int, list[int]] = {}
    for category_id, first in parents.items():
        above: list[int] = []
        parent = first
        while parent is not None and parent not in (category_id, *above):
            above.append(parent)
            parent = parents[parent]
        ancestors[category_id] = above
    return ancestors


def _expanded(annotations: Sequence[Entry], ancestors: Mapping[int, Sequence[int]]) -> list[Entry]:
    """Adds annotations of the ancestors, unless the data set has them."""
    if not any(ancestors.values()):
        return list(annotations)

    def identity(one: Entry) -> tuple[Any, ...]:
        return one["image_id"], one["category_id"], tuple(one["bbox"])

    expanded = {identity(one): one for one in reversed(annotations)}
    for one in annotations:
        for ancestor in ancestors[one["category_id"]]:
            added = {**one, "category_id": ancestor}
            expanded.setdefault(identity(added), added)
    known = {id(one) for one in annotations}
    return [*annotations, *(one for one in expanded.values() if id(one) not in known)]


def _grouped(entries: Iterable[Entry], keys: Sequence[str]) -> dict[Any, list[Entry]]:
    groups: dict[Any, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[tuple(entry[key] for key in keys)].append(entry)
    return groups


def _lacks_mask(annotation: Entry) -> bool:
    """Returns whether an annotation has no mask, or an empty one."""
    return CROWD_WITHOUT_MASK in annotation or is_empty_rle(annotation["segmentation"])


def _ranked(detections: Any) -> Iterator[tuple[tuple[int, int], FloatArray, Any]]:
    """Yields image and category, scores, and boxes or results by descending score; empty boxes are left out.

    Source: the TF Object Detection API removes boxes without an area.
    """
    if isinstance(detections, np.ndarray):
        rows = detections[(detections[:, 3] > 0) & (detections[:, 4] > 0)]
        rows = rows[np.lexsort((-rows[:, 5], rows[:, 6], rows[:, 0]))]
        cells = rows[:, [0, 6]]
        starts = np.flatnonzero((cells[1:] != cells[:-1]).any(axis=1)) + 1
        for some in np.split(rows, starts) if len(rows) else []:
            yield (int(some[0, 0]), int(some[0, 6])), some[:, 5], some[:, 1:5]
        return
    for cell, group in _grouped(detections, ("image_id", "category_id")).items():
        ranked = sorted(group, key=lambda one: -one["score"])
        yield cell, np.array([one["score"] for one in ranked], np.float64), ranked


def _first(best: Any, among: Any) -> Any:
    """Returns the position of the first of some detections per annotation."""
    positions = np.flatnonzero(among)
    return positions[np.unique(best[positions], return_index=True)[1]]
