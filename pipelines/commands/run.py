"""Runs the whole pipeline, from a COCO data set to a blessed, pushed detector."""

import argparse

from pipelines.commands.common import add_config_arguments, config_of
from pipelines.runners.compiled import TARGETS
from pipelines.runners.local import RUNNERS

SUMMARY = "run the whole pipeline: COCO data set to blessed, pushed detector"
EXAMPLE = "pipeline_runner.py run --data my_coco --set run.root=runs/mine --set model.name=efficientdet-d0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("--data", metavar="DIR", help="data set folder; same as --set data.root=DIR")
    parser.add_argument(
        "--runner",
        choices=(*RUNNERS, *TARGETS),
        default="local",
        help="local, beam: in this process; vertex, kubeflow: as `submit`; default: local",
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs instead of the progress")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: the run failed for a reason that the user can fix.
    """
    if args.runner in TARGETS:
        from pipelines.runners.submit import submit

        print(f"submitted: {submit(config_of(args), args.runner, verbose=args.verbose)[0]}")
        return 0
    from rich.console import Console

    from pipelines.runs.execute import execute_run
    from pipelines.runs.results import print_results

    results = execute_run(config_of(args), runner=args.runner, verbose=args.verbose)
    print_results(results, Console())
    return 0
