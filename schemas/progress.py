"""Progress of long work: an attribute of a log record, which displays draw as a bar."""

from typing import NamedTuple

PROGRESS_ATTRIBUTE = "progress"


class WorkProgress(NamedTuple):
    """Progress of one piece of work.

    work: name of the work, for displays that show no pipeline nodes.
    done: steps or images.
    total: in the same unit; None: unknown.
    note: text beside the bar.
    """

    work: str
    done: int
    total: int | None
    note: str
