"""Records that cannot be evaluated: an error that names them, or a list of what was left out."""

from collections.abc import Sequence
from typing import NamedTuple

from schemas.errors import DataError

_SHOWN = 5


class InvalidEntry(NamedTuple):
    """An entry of a COCO file, and what is wrong with it.

    source: the file, or what the entries were given as.
    position: in its list, from 0.
    record: as an error names it: "annotation 7", "detection 3 (image 42)".
    what: the kind of fault.
    detail: what of this record shows it; may be empty.
    remedy: what to do.
    """

    source: str
    position: int
    record: str
    what: str
    detail: str
    remedy: str

    @property
    def named(self) -> str:
        """The record and what shows the fault."""
        return f"{self.record}: {self.detail}" if self.detail else self.record


def refuse_or_skip(bad: Sequence[InvalidEntry], skipped: list[InvalidEntry] | None) -> None:
    """Adds bad records to those skipped.

    Raises:
        DataError: there are bad records and none may be skipped; it names those that
            share the first one's kind of fault.
    """
    if skipped is not None:
        skipped.extend(bad)
    elif bad:
        first = bad[0]
        alike = [record.named for record in bad if record.what == first.what]
        others = len(bad) - len(alike)
        more = f" Other faults there: {others}." if others else ""
        raise DataError(f"{first.source}: {first.what}: {listed(alike)}. {first.remedy}{more}")


def listed(names: Sequence[str]) -> str:
    """The first names, and how many there are besides."""
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
