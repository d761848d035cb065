"""Progress of long work: attributes of log records, displayed as a bar or as a moving line."""

import logging
from typing import NamedTuple

PROGRESS_ATTRIBUTE = "progress"
PHASE_ATTRIBUTE = "phase"


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


def log_phase(logger: logging.Logger, phase: str) -> None:
    """Logs the start of a phase without progress, such as compiling; terminals show it in a moving line."""
    logger.info("%s", phase, extra={PHASE_ATTRIBUTE: phase})
