"""Kinds of issues of a data set, and what is done about each.

The fields of `IssuePolicies` are the kinds.  The defaults are for training: nobody should
train on less data, or on other data, without noticing.
"""

from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from schemas.config.section import Section

# fail: stop, listing all issues.  drop: leave the image or annotation out, and list it
# in quarantine.jsonl.  fix: correct it.  keep: use it as it is, and tell.
Policy = Literal["fail", "drop", "fix", "keep"]

MAX_PIXELS = 89_478_485  # of an image: Pillow's own limit, a quarter of a GiB as RGB

FailDrop = Literal["fail", "drop"]
FailDropFix = Literal["fail", "drop", "fix"]
FailDropKeep = Literal["fail", "drop", "keep"]
FailDropFixKeep = Literal["fail", "drop", "fix", "keep"]


class IssuePolicies(Section):
    """A policy for each kind of issue.

    A single word in place of the section sets every kind: `fail` stops at each that is
    not kept by default, `drop` leaves out what would stop, `fix` corrects what can be
    corrected and leaves out the rest.
    """

    entry: FailDrop = Field(
        "fail", description="an image or annotation lacks a field, has an invalid one, or names an unknown id"
    )
    duplicate_id: FailDrop = Field("fail", description="duplicate id; drop keeps the first")
    image_missing: FailDrop = Field("fail", description="there is no such image file")
    image_unsafe: FailDrop = Field("fail", description="file_name leads out of the image folder")
    image_broken: FailDrop = Field("fail", description="the image file is empty, truncated or damaged")
    image_unsupported: FailDropFix = Field(
        "fail", description="TensorFlow does not decode this format; fix: store it as PNG, where Pillow reads it"
    )
    image_huge: FailDrop = Field("fail", description="more pixels than data.max_pixels, in the file or as declared")
    image_size: FailDropFix = Field(
        "fail", description="width and height are not the file's; fix: take the file's, where all boxes lie inside"
    )
    image_turned: FailDropFix = Field(
        "fail", description="width and height are those after an EXIF rotation; fix: store the turned pixels as PNG"
    )
    image_duplicate: FailDropKeep = Field(
        "keep", description="the same pixels are in the split already; drop keeps the first"
    )
    image_leak: FailDropKeep = Field(
        "keep", description="the same pixels are in two splits; drop keeps one, and rather eval's than train's"
    )
    annotation_duplicate: FailDropKeep = Field(
        "keep", description="the image has the same category, box and mask already; drop keeps the first"
    )
    box_empty: FailDrop = Field("drop", description="the box has no width or no height; COCO itself has two")
    box_outside: FailDropFix = Field(
        "fail", description="the box reaches over a pixel beyond the image; fix: clip it, drop what is then empty"
    )
    mask_broken: FailDropFix = Field(
        "fail", description="an RLE or polygon is no valid mask of the image's size; fix: remove the mask, keep the box"
    )
    mask_degenerate: FailDropFixKeep = Field(
        "keep", description="a polygon of fewer than three points; fix: remove that polygon"
    )
    mask_box: FailDropFixKeep = Field("keep", description="mask and box disagree; fix: take the mask's box")
    keypoints_broken: FailDropFix = Field(
        "fail", description="not three numbers for each of the category's keypoints; fix: remove the keypoints"
    )
    keypoints_outside: FailDropFixKeep = Field(
        "keep", description="a labelled keypoint lies outside the image; fix: mark it as not labelled"
    )
    category_empty: Literal["fail", "keep"] = Field("keep", description="a category without any annotation")

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        """Turns a single word into a policy for each kind, the nearest that the kind allows."""
        if value not in ("fail", "drop", "fix"):
            return value
        return {kind: _nearest(value, cls.allowed(kind), field.default) for kind, field in cls.model_fields.items()}

    def of(self, kind: str) -> Policy:
        """The policy for a kind of issue."""
        policy: Policy = getattr(self, kind)
        return policy

    @classmethod
    def allowed(cls, kind: str) -> tuple[Policy, ...]:
        """The policies that a kind of issue can have."""
        return get_args(cls.model_fields[kind].annotation)


def _nearest(word: Policy, allowed: tuple[Policy, ...], default: Policy) -> Policy:
    if default == "keep" and word != "fix":
        return default
    if word in allowed:
        return word
    return "drop" if "drop" in allowed and default != "keep" else default
