"""What a person can do about each kind of issue: in the files, or by a policy."""

from collections.abc import Mapping
from typing import NamedTuple

from schemas.config.issues import IssuePolicies, Policy

# In the data set's own files, by kind.
IN_THE_FILES: Mapping[str, str] = {
    "entry": "Complete or correct the entry, or remove it.",
    "duplicate_id": "Give one of the two another id, or remove it.",
    "image_missing": "Copy the file into the image folder, or correct file_name.",
    "image_unsafe": "Copy the file into the image folder, and make file_name relative to it.",
    "image_broken": "Copy or export the file again, or remove the image.",
    "image_unsupported": "Convert the file to JPEG or PNG, and correct file_name.",
    "image_huge": "Resize the image together with its annotations, or raise data.max_pixels.",
    "image_size": "Set width and height to those of the file, and check that the annotations belong to it.",
    "image_turned": "Store the rotated pixels without the EXIF tag, or set width and height to the stored pixels.",
    "image_duplicate": "Remove one of the two images.",
    "image_leak": "Remove the image from one split: metrics on images seen in training are too high.",
    "annotation_duplicate": "Remove one of the two annotations.",
    "box_empty": "Draw the box again, or remove the annotation.",
    "box_outside": "Clip the box to the image, or remove the annotation.",
    "mask_broken": "Draw the mask again, or remove `segmentation`.",
    "mask_degenerate": "Draw the polygon with three or more points, or remove it.",
    "mask_box": "Set the box to that of the mask, or draw the mask again.",
    "keypoints_broken": "Give x, y and visibility for each keypoint of the category, or remove `keypoints`.",
    "keypoints_outside": "Move the keypoint into the image, or set x, y and visibility to 0.",
    "category_empty": "Add annotations of the category, or remove it.",
}

_DROP, _KEEP = "leave out the {subject}", "use as it is"


class Choice(NamedTuple):
    """A policy that a user can choose: the flag to pass, and its effect."""

    flag: str
    effect: str


def meaning(kind: str) -> str:
    """What is wrong, without what the policies do."""
    return _description(kind)[0]


def choices(kind: str, policy: Policy) -> list[Choice]:
    """The policies other than the present one with which a run goes on.

    Args:
        kind: a field of `IssuePolicies`.
        policy: what is done now.
    """
    others = [other for other in ("fix", "drop", "keep") if other in IssuePolicies.allowed(kind) and other != policy]
    return [Choice(f"--set data.on_fault.{kind}={other}", _effect(kind, other)) for other in others]


def _effect(kind: str, policy: str) -> str:
    details = _description(kind)[1]
    if policy == "fix":
        return details.removeprefix("fix: ")
    if policy == "drop":
        if details.startswith("drop keeps"):
            return details.removeprefix("drop ")
        subject = "image" if kind.startswith("image") else "image or annotation" if kind == "entry" else "annotation"
        return _DROP.format(subject=subject)
    return _KEEP


def _description(kind: str) -> tuple[str, str]:
    """The kind's description: what is wrong, and what `fix` or `drop` does, if it says so."""
    what, _, details = (IssuePolicies.model_fields[kind].description or "").partition("; ")
    return what, details
