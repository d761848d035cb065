"""Evaluates the checkpoints of a training run as they are written, in another process.

Waits for checkpoints in DIR, also before the run starts. Evaluates the newest checkpoint
with the EMA weights, so the metrics are those of its exported model: on the images of the
run's train.validation; for a run without it, on the split `evaluate.split` (eval). Ends
when the run's last checkpoint is evaluated, or after --timeout minutes without a new
checkpoint. The detector is defined by the run's config.yaml, beside DIR. --set changes
the keys that apply here: train.validation.metric, train.validation.split,
train.validation.max_images, evaluate.batch_size, evaluate.split, data.*.

The output folder has TensorBoard files, history.json (the metrics of every checkpoint),
and in best/ the best checkpoint and its metrics.json. When called again, it continues
from there. The command uses a GPU if one is visible; set CUDA_VISIBLE_DEVICES= to leave
the GPU to the run.
"""

import argparse

from detection.storage.paths import join, parent
from pipelines.commands.common import add_assignments_argument
from schemas.artifacts import FOLLOW

SUMMARY = "evaluate each new checkpoint of a training run, and keep the best"
EXAMPLE = "cocoflow follow --checkpoints out/checkpoints --data my_coco --timeout 60"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("--checkpoints", metavar="DIR", required=True, help="checkpoint folder of the run")
    parser.add_argument("--data", metavar="DIR", required=True, help="data set folder, or folder of Examples")
    parser.add_argument(
        "--timeout",
        metavar="MIN",
        type=_parse_minutes,
        default=60.0,
        help="minutes to wait for a new checkpoint; default: 60",
    )
    parser.add_argument(
        "--output", metavar="DIR", help=f"folder for metrics and the best checkpoint; default: {FOLLOW}/ beside DIR"
    )
    parser.add_argument("--every", action="store_true", help="evaluate all checkpoints in DIR, not only the newest")
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")
    add_assignments_argument(parser, "override one key of the run's configuration")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: see `follow_run`.
        DataError: see `follow_run`.
    """
    from rich.console import Console

    from detection.coco.summary import metrics_tables
    from pipelines.console import quiet_run

    with quiet_run(None, verbose=args.verbose):
        from components.detection_trainer.follow import checkpoints_of, follow_run
        from detection.training.validation.follow import Patience

        checkpoints = checkpoints_of(args.checkpoints)
        result = follow_run(
            checkpoints,
            data=args.data,
            output=args.output or join(parent(checkpoints), FOLLOW),
            patience=Patience(seconds=60.0 * args.timeout),
            every_one=args.every,
            assignments=args.assignments,
        )
    if not result.ended:
        print(f"No new checkpoint for {args.timeout:g} minutes; the run has not ended, or was lost.")
    print(f"{result.evaluated} checkpoint{'s' * (result.evaluated != 1)} evaluated. The best: {result.best}")
    for table in metrics_tables(result.metrics, iou_type=result.iou_type):
        Console().print(table)
    return 0


def _parse_minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not 0.0 <= minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of minutes, such as 30")
    return minutes
