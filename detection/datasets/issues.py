"""Issues: everything that is wrong with a data set, with the policy applied to it."""

from dataclasses import asdict, dataclass
from typing import Any

from schemas.config.issues import IssuePolicies, Policy


@dataclass(frozen=True)
class Issue:
    """One issue of an image, an annotation or the data set, and the policy applied to it.

    kind: a field of `schemas.config.issues.IssuePolicies`.
    policy: the applied policy.
    where: the file to correct, or the split and the image's file_name.
    image_id: None: unknown or not relevant.
    annotation_id: None: the issue concerns the image or the data set.
    message: what is wrong, and what to do.
    """

    kind: str
    policy: Policy
    where: str
    image_id: int | None
    annotation_id: int | None
    message: str

    def __str__(self) -> str:
        ids = (("image", self.image_id), ("annotation", self.annotation_id))
        named = ", ".join(f"{what} {identity}" for what, identity in ids if identity is not None)
        return f"{self.where}{f' ({named})' if named else ''}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return asdict(self)


class ImageIssues:
    """The issues of one image and of its annotations.

    Args:
        policies: policies by kind.
        where: the image's split and file name, for messages.
        image_id: COCO image id.
    """

    def __init__(self, policies: IssuePolicies, *, where: str, image_id: int) -> None:
        self.issues: list[Issue] = []
        self._policies = policies
        self._where = where
        self._image_id = image_id

    def add(self, kind: str, message: str, *, annotation_id: int | None = None, fixable: bool = True) -> Policy:
        """Adds an issue.

        Args:
            kind: a field of `IssuePolicies`.
            message: what is wrong, and what to do.
            annotation_id: None: the issue concerns the image.
            fixable: whether the issue can be fixed; if not, `fix` becomes `drop`.

        Returns:
            The applied policy.
        """
        policy = self._policies.of(kind)
        if policy == "fix" and not fixable:
            policy = "drop"
        self.issues.append(Issue(kind, policy, self._where, self._image_id, annotation_id, message))
        return policy
