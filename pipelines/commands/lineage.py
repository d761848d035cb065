"""Tells what a pushed model came from: its training and configuration, data span, base models, evaluation and runs.

It reads the records below run.root/history and the files inside the SavedModel, and asks no
cluster. A version that was moved or copied is recognised by its content; name its run.root then.
"""

import argparse

from pipelines.commands.common import require_paths

SUMMARY = "show which data, configuration and runs a pushed model came from"
EXAMPLE = "cocoflow lineage runs/mine/serving/1795406984"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a pushed version; push directory: its newest version; run.root: its last push; or gs://",
    )
    parser.add_argument("--root", metavar="DIR", help="run.root with the records; default: found by the model")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a tree")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: a path that is not supported.
        DataError: no pushed model there, or no records in --root.
    """
    import json
    from dataclasses import asdict

    from pipelines.runs.lineage import find_lineage, print_lineage

    require_paths(args, "MODEL", "--root")
    lineage = find_lineage(args.model, root=args.root)
    if args.json:
        print(json.dumps(asdict(lineage), indent=2))
    else:
        print_lineage(lineage)
    return 0
