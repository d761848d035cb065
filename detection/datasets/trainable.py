"""Decides whether a detector can be trained on a data set and evaluated, for `check-data`, `run` and `train`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from detection.datasets.statistics import SplitSummary
from schemas.artifacts import TRAIN_SPLIT
from schemas.quoting import first_of, one_line

_LISTED = 5  # max named categories


def obstacles(
    splits: Mapping[str, SplitSummary],
    categories: Sequence[Mapping[str, Any]],
    *,
    judged: str = "",
    shapes: Collection[str] = (),
) -> Iterator[str]:
    """Yields why a detector cannot be trained, or not evaluated, a sentence each.

    Args:
        splits: summaries of the images and annotations that are left by split name.
        categories: COCO categories.
        judged: split that judges the model; "": none does.
        shapes: what the detector learns besides boxes: `masks`, `keypoints`.
    """
    named = [TRAIN_SPLIT, judged] if judged else [TRAIN_SPLIT]
    for name in named:
        if name not in splits:
            yield f"there is no split {name}, only {', '.join(map(one_line, splits)) or 'none'}"
    if not categories:
        yield "there is no category"
    for name in named:
        if name in splits and splits[name].images and not splits[name].objects:
            crowds = f" besides {splits[name].crowds:,} crowds, which are not trained on" if splits[name].crowds else ""
            yield f"{name} has no annotation{crowds}"
    trained = splits.get(TRAIN_SPLIT, SplitSummary())
    if "masks" in shapes and trained.objects and not trained.masks_of and trained.masks <= trained.crowds:
        yield (
            f"the detector learns masks, and {TRAIN_SPLIT} has none (`segmentation`): for a Mask R-CNN, --set "
            "model.overrides.include_mask=false learns the boxes"
        )
    if "keypoints" in shapes and categories and not any(one.get("keypoints") for one in categories):
        yield "the detector learns keypoints, and no category names any"


def doubts(
    splits: Mapping[str, SplitSummary], categories: Sequence[Mapping[str, Any]], *, judged: str
) -> Iterator[str]:
    """Yields what a model cannot have learned although it is judged by it, a sentence each."""
    if TRAIN_SPLIT not in splits or judged not in splits:
        return
    trained, asked = (splits[name].objects_of() for name in (TRAIN_SPLIT, judged))
    never = [one_line(one["name"]) for one in categories if asked[one["id"]] and not trained[one["id"]]]
    if never:
        yield (
            f"{judged} has annotations of categories that {TRAIN_SPLIT} has none of: {first_of(never, _LISTED)}; their "
            "AP will be 0"
        )
