"""Progress of long work: an attribute of a log record, displayed as a bar."""

from typing import NamedTuple

PROGRESS_ATTRIBUTE = "progress"


class WorkProgress(NamedTuple):
    """Progress of one task.

    work: name of the task, for displays without pipeline nodes.
    done: steps or images.
    total: total of the same unit; None: unknown.
    note: text beside the bar.
    """

    work: str
    done: int
    total: int | None
    note: str
