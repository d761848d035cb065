"""One thing that is wrong with a data set."""

from dataclasses import asdict, dataclass
from typing import Any

from schemas.config.faults import Policy


@dataclass(frozen=True)
class Fault:
    """What is wrong with one image or annotation, and what is done about it.

    kind: a field of `schemas.config.faults.FaultPolicies`.
    policy: what is done.
    where: the file that has to be corrected, or the split and the image's file_name.
    image_id: None where it is unknown or makes no difference.
    annotation_id: None where the image, or the whole data set, is at fault.
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
        """Plain values, for JSON."""
        return asdict(self)
