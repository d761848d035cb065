"""Trains again on this machine when a trigger fires, one run at a time, until it is stopped.

Triggers are the section `watch` of the configuration: times as a cron expression
(watch.cron), or a span or version of the data newer than the last one (watch.new_span). If
neither data nor configuration changed since the last finished run, also one that a person
started, a cron time is skipped; with watch.drift, so is new data like that of the last
training. Each run is the command `run` in a process of its own, on the span that triggered
it. Set train.init.from_previous_model=true to start every training from the last blessed model.

Every decision is a record in <run.root>/history/runs/ with its reason, is listed by `status`
as planned or skipped, and is logged on stderr. After a kill or a restart of the machine, start the
command again: an unfinished run resumes, and cron times that passed lead to one run.
Ctrl-C and SIGTERM end the run in order. --once suits systemd timers and CI: exit code 1
says that a run failed; the next call repeats it.
"""

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterator

from pipelines.commands.common import add_config_arguments, config_of
from schemas.program import require_module

SUMMARY = "train again by a schedule, or when new data arrives"
EXAMPLE = "cocoflow watch --config watch --data 'spans/{YYYY}-{MM}-{DD}'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("--data", metavar="DIR", help="data set folder, with {SPAN} or a date for data that arrives")
    parser.add_argument("--once", action="store_true", help="look at the triggers once, run if one says so, and exit")
    add_config_arguments(parser)


def resumes(_: argparse.Namespace) -> bool:
    """Returns whether the same command continues after an interruption."""
    return True


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: see `Watch`.
    """
    from pipelines.watch.watch import Watch

    require_module("tfx")
    watch = Watch(config_of(args))
    with _log_on_stderr():
        if args.once:
            return 0 if watch.run_once() else 1
        watch.run()
    return 0


@contextlib.contextmanager
def _log_on_stderr() -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger = logging.getLogger("cocoflow")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
