"""Detects the form of a COCO file's boxes: some exporters write corners or centers instead of COCO's x, y, w, h."""

import itertools
from collections.abc import Mapping
from dataclasses import replace

from components.coco_example_gen.shards import SplitResult
from components.coco_example_gen.sources import CocoSource, ImageSource
from detection.datasets.annotations.annotation_checks import lies_inside
from detection.datasets.issues import Issue
from detection.datasets.splits import BOX_FORMS
from schemas.config.issues import IssuePolicies

_LOOKED_AT = 1000  # images of a split
_FEW = 3  # boxes beyond their images that may be mistakes
_BEYOND = 0.05  # fraction of boxes outside their images above which the form is in doubt
_FITS = 0.99  # fraction of boxes inside their images in the right form
_WORDS = {"corners": "corners (x1, y1, x2, y2)", "centers": "center and size (center x, center y, width, height)"}


def find_box_forms(
    sources: Mapping[str, ImageSource], results: Mapping[str, SplitResult], policies: IssuePolicies
) -> tuple[list[Issue], dict[str, ImageSource]]:
    """Finds the splits whose boxes fit their images in another form only.

    Args:
        sources: of each split.
        results: of each split, whose issues say how many boxes do not fit.
        policies: policies for issues.

    Returns:
        An issue for each; and the sources that convert their boxes, if the policy is to fix them.
    """
    issues: list[Issue] = []
    converted: dict[str, ImageSource] = {}
    for name, source in sources.items():
        beyond = sum(issue.kind in ("box_outside", "box_empty") for issue in results[name].issues)
        if beyond <= _FEW or not isinstance(source, CocoSource) or source.files.boxes != "auto" or source.files.reader:
            continue
        shares = _shares(source)
        best = max(_WORDS, key=lambda form: shares[form])
        if shares["xywh"] > 1.0 - _BEYOND or shares[best] < _FITS:
            continue
        message = (
            f"split {name}: {1.0 - shares['xywh']:.0%} of the boxes reach beyond their images, or have no area, as "
            f"x, y, width, height; as {_WORDS[best]} {'all' if shares[best] == 1.0 else f'{shares[best]:.1%}'} fit. "
            f"Convert them with --set data.coco_boxes={best}, or keep them with data.coco_boxes=xywh."
        )
        issues.append(Issue("box_form", policies.of("box_form"), source.path, None, None, message))
        if policies.of("box_form") == "fix":
            converted[name] = replace(source, files=replace(source.files, boxes=best))
    return issues, converted


def _shares(source: CocoSource) -> dict[str, float]:
    """Returns the share of boxes that lie in their images, by form."""
    fits: dict[str, list[bool]] = {form: [] for form in BOX_FORMS}
    with source.entries() as read:
        for image_id in itertools.islice(source.image_ids(), _LOOKED_AT):
            entry, annotations = read(image_id)
            for annotation in annotations:
                for form, convert in BOX_FORMS.items():
                    box = convert(annotation["bbox"])
                    inside = lies_inside(box, width=entry["width"], height=entry["height"])
                    fits[form].append(min(box[2:]) > 0 and inside)
    return {form: sum(ones) / max(len(ones), 1) for form, ones in fits.items()}
