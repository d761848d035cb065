#!/usr/bin/env python3
"""The one program of Cocoflow: `pipeline_runner.py VERB`, also installed as `cocoflow`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from pipelines.runs.stop_signals import StopSignals, end_soon, stop_signals
from schemas.errors import find_user_error, was_interrupted
from schemas.quoting import printable

# One module of pipelines/commands/ each; heavy imports stand inside their `run`.
VERBS = ("run", "train", "follow", "evaluate", "compare", "predict", "check-data", "to-examples", "to-coco")

_DESCRIPTION = "Turns a COCO data set into an evaluated, pushed object detector."
_EPILOG = (
    "`%(prog)s VERB --help` explains a verb. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, "
    "130 ended by Ctrl-C, 143 by SIGTERM."
)


def build_parser(names: Sequence[str] = VERBS) -> argparse.ArgumentParser:
    """Builds the command line of some verbs."""
    parser = argparse.ArgumentParser(prog="pipeline_runner.py", description=_DESCRIPTION, epilog=_EPILOG)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in names:
        module = importlib.import_module(f"pipelines.commands.{name.replace('-', '_')}")
        verb = verbs.add_parser(
            name,
            help=module.SUMMARY,
            description=f"{module.__doc__}",
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; returns the exit code."""
    with stop_signals() as stop:
        return _run(arguments, stop)


def program() -> NoReturn:
    """Runs the verb of the command line, and ends the process."""
    with stop_signals() as stop:
        code = _run(None, stop)
        if stop.received:
            end_soon(code)
    sys.exit(code)


def _run(arguments: Sequence[str] | None, stop: StopSignals) -> int:
    try:
        arguments = sys.argv[1:] if arguments is None else arguments
        # Only the verb called is imported; all are for --help and for a verb that does not exist.
        names = [name for name in arguments[:1] if name in VERBS]
        args = build_parser(names or VERBS).parse_args(arguments)
        return int(args.run(args))
    except BaseException as error:
        # Beam and TFX raise a worker's error again inside errors of their own.
        if stop.received or was_interrupted(error):
            print(stop.word, file=sys.stderr)
            return stop.exit_code
        found = find_user_error(error)
        if found is None:
            raise
        print(f"error: {printable(str(found))}", file=sys.stderr)
        return found.exit_code


if __name__ == "__main__":
    program()
