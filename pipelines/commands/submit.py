"""Compiles the pipeline and submits it to Vertex AI Pipelines or Kubeflow Pipelines.

Where and how it runs there is in the sections run.vertex and run.kubeflow. Everything that can be
checked here is checked before anything is sent.
"""

import argparse
import sys
from functools import partial

from pipelines.commands.common import add_config_arguments, config_of
from pipelines.runners.compiled import TARGETS

SUMMARY = "run the pipeline on Vertex AI Pipelines or Kubeflow Pipelines"
EXAMPLE = (
    "cocoflow submit --runner vertex --config mine.yaml --data gs://BUCKET/coco \\\n"
    "      --set run.vertex.project=PROJECT --parameter train_steps=20000 --wait"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add_target_argument(parser)
    add_pipeline_arguments(parser)
    parser.add_argument("--wait", action="store_true", help="wait for the end of the run; a failed run is exit code 1")


def add_target_argument(parser: argparse._ActionsContainer) -> None:
    """Adds `--runner`."""
    parser.add_argument("--runner", choices=tuple(TARGETS), required=True, help="where the pipeline runs")


def add_pipeline_arguments(parser: argparse._ActionsContainer) -> None:
    """Adds the flags of what is compiled and sent."""
    add_config_arguments(parser, data=True)
    parser.add_argument(
        "--parameter",
        dest="parameters",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="value of a parameter of the compiled pipeline, such as train_steps=500; repeatable",
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: the pipeline could not be submitted, or the run failed.
    """
    from pipelines.runners.submit import submit
    from pipelines.runs.recorded_run import record_submission

    config = config_of(args, here=False)
    record = partial(record_submission, config, args.runner)
    name, address = submit(config, args.runner, args.parameters, record=record, wait=args.wait, verbose=args.verbose)
    print(f"submitted: {name}")
    print(f"its page: {address}", file=sys.stderr)
    return 0
