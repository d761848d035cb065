"""Kinds of issues of a data set, and the policy for each.

The fields of `IssuePolicies` are the kinds.  The defaults are for training: they remove or change little, and say so.
"""

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from schemas.config.section import Section

# repair: fix or drop what is in no doubt, up to MOST_REPAIRED of a split; stop at more.  fail: stop and list the
# issues.  drop: remove the image or annotation, and list it
# in quarantine.jsonl.  fix: correct it.  keep: use it unchanged, and report it.
Policy = Literal["repair", "fail", "drop", "fix", "keep", "move"]

MOST_REPAIRED = 0.02  # of the images, and of the annotations, of a split

MAX_PIXELS = 89_478_485  # Pillow's limit, a quarter of a GiB as RGB

FailDrop = Literal["fail", "drop"]
RepairFailDrop = Literal["repair", "fail", "drop"]
RepairFailDropFix = Literal["repair", "fail", "drop", "fix"]
FailDropKeep = Literal["fail", "drop", "keep"]
FailDropFixKeep = Literal["fail", "drop", "fix", "keep"]


class IssuePolicies(Section):
    """A policy for each kind of issue.

    The default `repair` leaves out, or corrects where nothing is in doubt, up to 2 % of a split's images or
    annotations, and stops at more.  A single policy instead of the section applies to every kind: `fail` stops at
    every kind whose default is not `keep`, `drop` drops instead of stopping, and `fix` corrects where possible and
    drops the rest.
    """

    entry: RepairFailDrop = Field(
        "repair", description="a field of an image or annotation is missing or invalid, or an id is unknown"
    )
    duplicate_id: RepairFailDropFix = Field(
        "repair", description="the id is not unique; fix: number annotations anew that differ, drop keeps the first"
    )
    image_missing: RepairFailDrop = Field("repair", description="the image file does not exist")
    image_unsafe: RepairFailDrop = Field("repair", description="file_name points outside the image folder")
    image_broken: RepairFailDrop = Field("repair", description="the image file is empty, truncated or damaged")
    image_unsupported: RepairFailDropFix = Field(
        "repair",
        description="TensorFlow cannot decode the image format; fix: store the image as PNG, if Pillow reads it",
    )
    image_huge: RepairFailDrop = Field(
        "repair", description="the image has more pixels than data.max_pixels, in the file or as declared"
    )
    image_size: RepairFailDropFix = Field(
        "repair", description="width and height differ from the file's; fix: use the file's, if all boxes are inside"
    )
    image_turned: RepairFailDropFix = Field(
        "repair", description="width and height are those after the EXIF rotation; fix: store the rotated pixels as PNG"
    )
    image_tagged: FailDropFixKeep = Field(
        "keep",
        description="an EXIF tag makes viewers turn or mirror the image, and width and height are the stored ones, "
        "so the boxes refer to the stored pixels; fix: turn the pixels as viewers do",
    )
    image_contrast: FailDropKeep = Field(
        "keep", description="the image has 16 bits and uses a small part of them: few of 256 grey levels are left"
    )
    image_duplicate: FailDropKeep = Field(
        "keep", description="another image of the split has the same pixels; drop keeps the first"
    )
    image_leak: Literal["fail", "drop", "keep", "move"] = Field(
        "keep",
        description="an image of another split has the same pixels, or is a copy by its name, mirrored, turned, darker "
        "or blurred; drop keeps one, eval's rather than train's; move: all copies go to train",
    )
    annotation_duplicate: FailDropKeep = Field(
        "keep", description="another annotation of the image has the same category, box and mask; drop keeps the first"
    )
    ignored: FailDropFixKeep = Field(
        "fix",
        description="the annotation has a field ignore, or a category for ignored regions; fix: treat it like a "
        "crowd, not trained on and ignored in the evaluation; keep: like other annotations",
    )
    box_form: Literal["fail", "fix", "keep"] = Field(
        "fail",
        description="many boxes of the file do not fit their images, and all do as corners or centers; fix: convert "
        "them to x, y, width, height",
    )
    box_fractions: RepairFailDropFix = Field(
        "repair", description="the box lies within 0 to 1, as fractions of the image do; fix: make pixels of them"
    )
    box_rotated: FailDropFixKeep = Field(
        "fix", description="CVAT's rotation of the box; fix: the upright box around the rotated one"
    )
    box_empty: FailDrop = Field("drop", description="the box has no area; COCO itself has two such boxes")
    box_outside: RepairFailDropFix = Field(
        "repair",
        description="the box extends more than one pixel beyond the image; fix: clip it, or drop it if it is outside; "
        "repair: the same, and clip any number by up to 2 % of a side or 5 pixels",
    )
    area_wrong: FailDropFixKeep = Field(
        "fix", description="area is at most 1, or more than the box's; fix: the area of the mask, or of the box"
    )
    mask_broken: RepairFailDropFix = Field(
        "repair",
        description="the RLE or polygon is not a valid mask of the image's size; fix: remove the mask, keep the box",
    )
    mask_degenerate: FailDropFixKeep = Field(
        "keep", description="a polygon has fewer than three points; fix: remove that polygon"
    )
    mask_box: FailDropFixKeep = Field("keep", description="mask and box disagree; fix: use the mask's box")
    keypoints_broken: RepairFailDropFix = Field(
        "repair",
        description="keypoints are not x, y and visibility for each keypoint of the category; fix: remove the "
        "keypoints",
    )
    keypoints_outside: FailDropFixKeep = Field(
        "keep", description="a labelled keypoint is outside the image; fix: mark it as unlabelled"
    )
    keypoints_count: FailDropFixKeep = Field(
        "fix", description="num_keypoints is not the number of labelled keypoints; fix: count them"
    )
    keypoints_unnamed: FailDropFixKeep = Field(
        "keep", description="keypoints of a category that names none; fix: remove the keypoints"
    )
    keypoints_box: FailDropFixKeep = Field(
        "keep", description="most labelled keypoints are far outside of the box; fix: remove the keypoints"
    )
    field_name: FailDropKeep = Field(
        "keep",
        description="a field has another name than COCO's, such as isCrowd, and is not read; or iscrowd is missing "
        "where other annotations of the image have 0",
    )
    category_alike: Literal["fail", "keep"] = Field(
        "keep",
        description="two categories' names differ only in capitals, spaces or the form of accents, a name is empty, or "
        "a field has another name than COCO's",
    )
    category_empty: Literal["fail", "keep"] = Field("keep", description="the category has no annotations")

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        """Expands a single policy to the nearest allowed policy of each kind."""
        if value not in ("fail", "drop", "fix"):
            return value
        return {kind: _nearest(value, cls.allowed(kind), field.default) for kind, field in cls.model_fields.items()}

    def of(self, kind: str) -> Policy:
        """Returns the policy for a kind of issue."""
        policy: Policy = getattr(self, kind)
        return policy

    @classmethod
    def allowed(cls, kind: str) -> tuple[Policy, ...]:
        """Returns the allowed policies for a kind of issue."""
        return get_args(cls.model_fields[kind].annotation)


def _nearest(word: Policy, allowed: tuple[Policy, ...], default: Policy) -> Policy:
    if (default == "keep" and word != "fix") or (default == "fix" and word == "drop"):
        return default
    if word in allowed:
        return word
    if "drop" in allowed and default != "keep":
        return "drop"
    return "fix" if "fix" in allowed else default
