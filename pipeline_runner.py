#!/usr/bin/env python3
"""The one program of Cocoflow: `pipeline_runner.py VERB`, also installed as `cocoflow`."""

import argparse
import importlib
import sys
from collections.abc import Sequence

from schemas.errors import find_user_error
from schemas.quoting import printable

# One module of pipelines/verbs/ each; heavy imports stand inside their `run`.
VERBS = ("run", "train", "follow", "evaluate", "compare", "predict", "check-data", "to-examples", "to-coco")

_DESCRIPTION = "Turns a COCO data set into an evaluated, pushed object detector."
_EPILOG = "`%(prog)s VERB --help` explains a verb. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration."


def build_parser() -> argparse.ArgumentParser:
    """The command line of all verbs."""
    parser = argparse.ArgumentParser(prog="pipeline_runner.py", description=_DESCRIPTION, epilog=_EPILOG)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name in VERBS:
        module = importlib.import_module(f"pipelines.verbs.{name.replace('-', '_')}")
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
    args = build_parser().parse_args(arguments)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        # Beam and TFX raise a worker's error again inside errors of their own.
        found = find_user_error(error)
        if found is None:
            raise
        print(f"error: {printable(str(found))}", file=sys.stderr)
        return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
