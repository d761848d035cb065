"""Kinds of issues of a data set, and the policy for each.

The defaults are for training: they remove or change little, and say so.
"""

from typing import Any, Literal, NamedTuple, Self

from pydantic import ConfigDict, RootModel, model_validator

from schemas.detectors import nearest_or_all

# repair: fix or drop what is in no doubt, up to MOST_REPAIRED of a split; stop at more.  fail: stop and list the
# issues.  drop: remove the image or annotation, and list it
# in quarantine.jsonl.  fix: correct it.  keep: use it unchanged, and report it.
Policy = Literal["repair", "fail", "drop", "fix", "keep", "move"]

DEFAULT = "default"  # key of the policy of all kinds that are not named
MOST_REPAIRED = 0.02  # fraction of the images, and of the annotations, of a split

MAX_PIXELS = 89_478_485  # Pillow's limit, a quarter of a GiB as RGB


class IssueKind(NamedTuple):
    """A kind of issue.

    default: its policy.
    allowed: policies that it can have.
    description: the issue, and after a semicolon the effects of policies.
    remedy: what to do in the files of the data set.
    """

    default: Policy
    allowed: tuple[Policy, ...]
    description: str
    remedy: str


_FAIL_DROP: tuple[Policy, ...] = ("fail", "drop")
_REPAIR_DROP: tuple[Policy, ...] = ("repair", "fail", "drop")
_REPAIR_FIX: tuple[Policy, ...] = ("repair", "fail", "drop", "fix")
_DROP_KEEP: tuple[Policy, ...] = ("fail", "drop", "keep")
_FIX_KEEP: tuple[Policy, ...] = ("fail", "drop", "fix", "keep")

ISSUE_KINDS: dict[str, IssueKind] = {
    "entry": IssueKind(
        "repair",
        _REPAIR_DROP,
        "a field of an image or annotation is missing or invalid, or an id is unknown",
        "Complete or correct the entry, or remove it.",
    ),
    "duplicate_id": IssueKind(
        "repair",
        _REPAIR_FIX,
        "the id is not unique; fix: number annotations anew that differ, drop keeps the first",
        "Change one of the two ids, or remove one entry.",
    ),
    "image_missing": IssueKind(
        "repair",
        _REPAIR_DROP,
        "the image file does not exist",
        "Copy the file into the image folder, or correct file_name.",
    ),
    "image_unsafe": IssueKind(
        "repair",
        _REPAIR_DROP,
        "file_name points outside the image folder",
        "Copy the file into the image folder, and make file_name relative to it.",
    ),
    "image_broken": IssueKind(
        "repair",
        _REPAIR_DROP,
        "the image file is empty, truncated or damaged",
        "Copy or export the file again, or remove the image.",
    ),
    "image_unsupported": IssueKind(
        "repair",
        _REPAIR_FIX,
        "TensorFlow cannot decode the image format; fix: store the image as PNG, if Pillow reads it",
        "Convert the file to JPEG or PNG, and correct file_name.",
    ),
    "image_huge": IssueKind(
        "repair",
        _REPAIR_DROP,
        "the image has more pixels than data.max_pixels, in the file or as declared",
        "Resize the image together with its annotations, or raise data.max_pixels.",
    ),
    "image_size": IssueKind(
        "repair",
        _REPAIR_FIX,
        "width and height differ from the file's; fix: use the file's, if all boxes are inside",
        "Set width and height to those of the file, and check that the annotations belong to it.",
    ),
    "image_turned": IssueKind(
        "repair",
        _REPAIR_FIX,
        "width and height are those after the EXIF rotation; fix: store the rotated pixels as PNG",
        "Store the rotated pixels without the EXIF tag, or set width and height to the stored pixels.",
    ),
    "image_tagged": IssueKind(
        "keep",
        _FIX_KEEP,
        "an EXIF tag makes viewers turn or mirror the image, and width and height are the stored ones, so the "
        "boxes refer to the stored pixels; fix: turn the pixels as viewers do",
        "Where boxes fit the image as viewers show it, store the turned pixels without the EXIF tag.",
    ),
    "image_contrast": IssueKind(
        "keep",
        _DROP_KEEP,
        "the image has 16 bits and uses a small part of them: few of 256 grey levels are left",
        "Scale the values that are used to 8 bits.",
    ),
    "image_duplicate": IssueKind(
        "keep",
        _DROP_KEEP,
        "another image of the split has the same pixels; drop keeps the first",
        "Remove one of the two images.",
    ),
    "image_leak": IssueKind(
        "keep",
        ("fail", "drop", "keep", "move"),
        "an image of another split has the same pixels, or is a copy by its name, mirrored, turned, darker or "
        "blurred; drop keeps one, eval's rather than train's; move: all copies go to train",
        "Remove the image from one split: metrics on images seen in training are too high.",
    ),
    "annotation_duplicate": IssueKind(
        "keep",
        _DROP_KEEP,
        "another annotation of the image has the same category, box and mask; drop keeps the first",
        "Remove one of the two annotations.",
    ),
    "ignored": IssueKind(
        "fix",
        _FIX_KEEP,
        "the annotation has a field ignore, or a category for ignored regions; fix: treat it like a crowd, not "
        "trained on and ignored in the evaluation; keep: like other annotations",
        "Write iscrowd 1 for regions to ignore, and remove `ignore` from those to learn.",
    ),
    "box_form": IssueKind(
        "fail",
        ("fail", "fix", "keep"),
        "many boxes of the file do not fit their images, and all do as corners or centers; fix: convert them to "
        "x, y, width, height",
        "Write x, y, width, height, or set data.coco_boxes.",
    ),
    "box_fractions": IssueKind(
        "repair",
        _REPAIR_FIX,
        "the box lies within 0 to 1, as fractions of the image do; fix: make pixels of them",
        "Multiply x and width by the image's width, y and height by its height.",
    ),
    "box_rotated": IssueKind(
        "fix",
        _FIX_KEEP,
        "CVAT's rotation of the box; fix: the upright box around the rotated one",
        "Draw upright boxes.",
    ),
    "box_empty": IssueKind(
        "drop",
        _FAIL_DROP,
        "the box has no area; COCO itself has two such boxes",
        "Draw the box again, or remove the annotation.",
    ),
    "box_outside": IssueKind(
        "repair",
        _REPAIR_FIX,
        "the box extends more than one pixel beyond the image; fix: clip it, or drop it if it is outside; repair: "
        "the same, and clip any number by up to 2 % of a side or 5 pixels",
        "Clip the box to the image, or remove the annotation.",
    ),
    "area_wrong": IssueKind(
        "fix",
        _FIX_KEEP,
        "area is at most 1, or more than the box's; fix: the area of the mask, or of the box",
        "Write the area of the mask, or that of the box, in square pixels.",
    ),
    "mask_broken": IssueKind(
        "repair",
        _REPAIR_FIX,
        "the RLE or polygon is not a valid mask of the image's size; fix: remove the mask, keep the box",
        "Draw the mask again, or remove `segmentation`.",
    ),
    "mask_degenerate": IssueKind(
        "keep",
        _FIX_KEEP,
        "a polygon has fewer than three points; fix: remove that polygon",
        "Draw the polygon with three or more points, or remove it.",
    ),
    "mask_box": IssueKind(
        "keep",
        _FIX_KEEP,
        "mask and box disagree; fix: use the mask's box",
        "Set the box to that of the mask, or draw the mask again.",
    ),
    "keypoints_broken": IssueKind(
        "repair",
        _REPAIR_FIX,
        "keypoints are not x, y and visibility for each keypoint of the category; fix: remove the keypoints",
        "Write x, y and visibility for each keypoint of the category, or remove `keypoints`.",
    ),
    "keypoints_outside": IssueKind(
        "keep",
        _FIX_KEEP,
        "a labelled keypoint is outside the image; fix: mark it as unlabelled",
        "Move the keypoint into the image, or set x, y and visibility to 0.",
    ),
    "keypoints_count": IssueKind(
        "fix",
        _FIX_KEEP,
        "num_keypoints is not the number of labelled keypoints; fix: count them",
        "Write the number of keypoints with a visibility above 0.",
    ),
    "keypoints_unnamed": IssueKind(
        "keep",
        _FIX_KEEP,
        "keypoints of a category that names none; fix: remove the keypoints",
        "Name the keypoints in the category, or remove them.",
    ),
    "keypoints_box": IssueKind(
        "keep",
        _FIX_KEEP,
        "most labelled keypoints are far outside of the box; fix: remove the keypoints",
        "Correct the keypoints or the box.",
    ),
    "field_name": IssueKind(
        "keep",
        _DROP_KEEP,
        "a field has another name than COCO's, such as isCrowd, and is not read; or iscrowd is missing where "
        "other annotations of the image have 0",
        "Name the field as COCO does.",
    ),
    "category_alike": IssueKind(
        "keep",
        ("fail", "keep"),
        "two categories' names differ only in capitals, spaces or the form of accents, a name is empty, or a "
        "field has another name than COCO's",
        "Give the category one name, or two that differ more.",
    ),
    "category_empty": IssueKind(
        "keep", ("fail", "keep"), "the category has no annotations", "Add annotations of the category, or remove it."
    ),
}


class IssuePolicies(RootModel[dict[str, Policy]]):
    """Policies by kind of issue; `default` is that of all kinds that are not named, and a single word is `default`.

    As `default`, `fail` stops at every kind whose own default is not `keep`, `drop` drops instead of stopping, and
    `fix` corrects where possible and drops the rest.  Without it, each kind has its own: `repair` leaves out, or
    corrects where nothing is in doubt, up to 2 % of a split's images or annotations, and stops at more.
    """

    model_config = ConfigDict(frozen=True)

    root: dict[str, Policy] = {}

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        return {DEFAULT: value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_kinds(self) -> Self:
        for kind, policy in self.root.items():
            if kind != DEFAULT and kind not in ISSUE_KINDS:
                nearest = nearest_or_all(kind, (DEFAULT, *ISSUE_KINDS)).removesuffix(".")
                raise ValueError(f"{kind}: no such kind of issue. {nearest}")
            allowed = ("fail", "drop", "fix") if kind == DEFAULT else ISSUE_KINDS[kind].allowed
            if policy not in allowed:
                raise ValueError(f"{kind} = {policy}: choose from {', '.join(allowed)}")
        return self

    def of(self, kind: str) -> Policy:
        """Returns the policy for a kind of issue."""
        default, allowed, *_ = ISSUE_KINDS[kind]
        word = self.root.get(DEFAULT)
        if kind in self.root or word is None:
            return self.root.get(kind, default)
        if (default == "keep" and word != "fix") or (default == "fix" and word == "drop"):
            return default
        if word in allowed:
            return word
        if "drop" in allowed and default != "keep":
            return "drop"
        return "fix" if "fix" in allowed else default
