"""Issues: everything that is wrong with a data set, with the policy applied to it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from schemas.config.issues import MOST_REPAIRED, IssuePolicies, Policy

_FIXED = {"box_outside", "mask_broken", "keypoints_broken"}  # `repair` drops the other kinds


@dataclass(frozen=True)
class Issue:
    """One issue of an image, an annotation or the data set, and the policy applied to it.

    kind: a key of `schemas.config.issues.ISSUE_KINDS`.
    policy: the applied policy.
    where: the file to correct, or the split and the image's file_name.
    image_id: None: unknown or not relevant.
    annotation_id: None: the issue concerns the image or the data set.
    message: what is wrong, and what to do.
    repaired: what counts towards the limit of repairs; "": nothing.
    """

    kind: str
    policy: Policy
    where: str
    image_id: int | None
    annotation_id: int | None
    message: str
    repaired: Literal["", "image", "annotation"] = ""

    def __str__(self) -> str:
        ids = (("image", self.image_id), ("annotation", self.annotation_id))
        named = ", ".join(f"{what} {identity}" for what, identity in ids if identity is not None)
        return f"{self.where}{f' ({named})' if named else ''}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        values = asdict(self)
        del values["repaired"]
        return values


def applied(policy: Policy, kind: str, *, fixable: bool = True) -> Policy:
    """Returns what is done about an issue: `repair` and `fix` become `fix` where that is possible, else `drop`."""
    if policy == "repair":
        return "fix" if fixable and kind in _FIXED else "drop"
    return "drop" if policy == "fix" and not fixable else policy


def make_issue(
    policies: IssuePolicies,
    kind: str,
    message: str,
    where: str,
    *,
    image_id: int | None = None,
    annotation_id: int | None = None,
    fixable: bool = True,
    certain: bool = False,
    concerns: Literal["", "image", "annotation"] = "",
) -> Issue:
    """Returns an issue, with what is done about it.

    Args:
        policies: policies by kind.
        kind: a key of `ISSUE_KINDS`.
        message: what is wrong, and what to do.
        where: the file to correct, or the split and the image's file_name.
        image_id: None: unknown or not relevant.
        annotation_id: None: unknown, or the issue concerns the image.
        fixable: whether the issue can be fixed; if not, `fix` becomes `drop`.
        certain: the fix is in no doubt, so it does not count towards the limit of repairs.
        concerns: what a repair counts as; "": an annotation if there is an `annotation_id`, else an image.
    """
    given = policies.of(kind)
    policy = applied(given, kind, fixable=fixable)
    counts = given == "repair" and not (certain and policy == "fix")
    concerns = concerns or ("image" if annotation_id is None else "annotation")
    return Issue(kind, policy, where, image_id, annotation_id, message, concerns if counts else "")


def limited(issues: Sequence[Issue], split: str, *, images: int, annotations: int) -> tuple[list[Issue], list[str]]:
    """Turns repairs into failures where they concern too much of a split.

    Args:
        issues: of the split.
        split: its name, or that of the file.
        images: number of its images.
        annotations: number of its annotations.

    Returns:
        The issues; and why they stop a run, a sentence each.
    """
    reasons = []
    for what, total in (("image", images), ("annotation", annotations)):
        repaired = [issue for issue in issues if issue.repaired == what]
        if len(repaired) > MOST_REPAIRED * total:
            reasons.append(f"{split}: {len(repaired):,} of {total:,} {what}s, more than {MOST_REPAIRED:.0%}")
            issues = [replace(issue, policy="fail") if issue.repaired == what else issue for issue in issues]
    return list(issues), reasons


class ImageIssues:
    """The issues of one image and of its annotations.

    Args:
        policies: policies by kind.
        where: the image's split and file name, for messages.
        image_id: COCO image id.
    """

    def __init__(self, policies: IssuePolicies, *, where: str, image_id: int) -> None:
        self.issues: list[Issue] = []
        self._make = partial(make_issue, policies, where=where, image_id=image_id)

    def add(
        self, kind: str, message: str, *, annotation_id: int | None = None, fixable: bool = True, certain: bool = False
    ) -> Policy:
        """Adds an issue.

        Args:
            kind: a key of `ISSUE_KINDS`.
            message: what is wrong, and what to do.
            annotation_id: None: the issue concerns the image.
            fixable: whether the issue can be fixed; if not, `fix` becomes `drop`.
            certain: the fix is in no doubt, so it does not count towards the limit of repairs.

        Returns:
            The applied policy.
        """
        issue = self._make(kind, message, annotation_id=annotation_id, fixable=fixable, certain=certain)
        self.issues.append(issue)
        return issue.policy
