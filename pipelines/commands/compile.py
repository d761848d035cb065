"""Compiles the pipeline into a file that Vertex AI Pipelines or Kubeflow Pipelines run.

Needs no credentials, no network and no data: paths of the configuration are those of the
containers.
"""

import argparse
from pathlib import Path

from pipelines.commands.common import add_config_arguments, config_of
from pipelines.runners.compiled import TARGETS

SUMMARY = "compile the pipeline for Vertex AI Pipelines or Kubeflow Pipelines"
EXAMPLE = (
    "cocoflow compile --runner vertex --output pipeline.json --data gs://BUCKET/coco \\\n"
    "      --set run.root=gs://BUCKET/runs/mine --set run.image=REGISTRY/cocoflow:TAG"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("--runner", choices=tuple(TARGETS), required=True, help="where the pipeline will run")
    parser.add_argument("--output", metavar="FILE", required=True, help="vertex: a .json file; kubeflow: a .yaml file")
    add_config_arguments(parser, data=True)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: the configuration cannot be compiled, or the file cannot be written.
    """
    from detection.storage.atomic import write_text
    from pipelines.console import quiet_run
    from pipelines.runners.compiled import compile_pipeline, require_ending

    require_ending(args.output, args.runner)
    config = config_of(args, here=False)
    with quiet_run(None, verbose=False):
        compiled = compile_pipeline(config, args.runner)
    write_text(Path(args.output), compiled)
    print(f"compiled: {args.output}")
    return 0
