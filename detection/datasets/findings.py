"""Faults of one image as they are found, each with what its policy says."""

from detection.datasets.issues import Fault
from schemas.config.faults import FaultPolicies, Policy


class Findings:
    """The faults of one image and of its annotations.

    Args:
        policies: what is done about each kind.
        where: names the image to people: its split and file name.
        image_id: COCO's.
    """

    def __init__(self, policies: FaultPolicies, *, where: str, image_id: int) -> None:
        self.faults: list[Fault] = []
        self._policies = policies
        self._where = where
        self._image_id = image_id

    def add(self, kind: str, message: str, *, annotation_id: int | None = None, fixable: bool = True) -> Policy:
        """Notes a fault.

        Args:
            kind: see `FaultPolicies`.
            message: what is wrong, and what to do.
            annotation_id: None where the image is at fault.
            fixable: whether this one can be fixed; where not, `fix` becomes `drop`.

        Returns:
            What to do.
        """
        policy = self._policies.of(kind)
        if policy == "fix" and not fixable:
            policy = "drop"
        self.faults.append(Fault(kind, policy, self._where, self._image_id, annotation_id, message))
        return policy


def printable(text: str) -> str:
    """A text that may be shown on a terminal: control characters and the like as escapes."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
