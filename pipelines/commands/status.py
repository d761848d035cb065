"""Shows the runs of a run.root: state, data span, metrics and pushed version, the newest first.

It reads the records below run.root/history, also during a run, and asks no cluster. A run
whose process died without recording an end is shown as dead; the next run closes it.
"""

import argparse

from pipelines.commands.common import require_paths

SUMMARY = "show the runs of a run.root, and what they made"
EXAMPLE = "cocoflow status --root runs/mine --limit 10 --artifacts"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("--root", metavar="DIR", required=True, help="run.root of a pipeline, local or gs://")
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="number of runs, 0: all; default: 20")
    parser.add_argument("--artifacts", action="store_true", help="list the artifacts with component, state and folder")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: a negative limit, or a path that is not supported.
        DataError: no run was recorded in the folder.
    """
    import json

    from pipelines.runs.status import print_status, read_status
    from schemas.errors import ConfigError

    require_paths(args, "--root")
    if args.limit < 0:
        raise ConfigError(f"--limit {args.limit}: give a number of runs, or 0 for all.")
    status = read_status(args.root, limit=args.limit or None, with_artifacts=args.artifacts)
    if args.json:
        print(json.dumps(status.as_json(), indent=2))
    else:
        print_status(status)
    return 0
