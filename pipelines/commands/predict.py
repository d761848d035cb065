"""Runs a model on image files, and writes the detections as a COCO results file.

Detections have a box and a score, and masks (RLE) and keypoints if the model has them.
--draw draws all of these.

All detections are written, also those of low scores, which AP needs. --score-thresholds
best-f1 leaves out those below the threshold of their category: a pushed model holds the
score of the highest F1 of each category in its evaluation.

Image ids are taken from --ground-truth, by file_name. Without it, images are numbered
from 1 in the order of their paths, and the list of images is written beside the
detections as NAME_images.json.
"""

import argparse

from detection.storage.paths import require_supported_paths
from pipelines.commands.common import add_tta_argument, views_from_text
from schemas.quoting import one_line

SUMMARY = "run a model on images, and write COCO results"
EXAMPLE = "pipeline_runner.py predict --model runs/demo/serving/1 --images photos --output detections.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--model", metavar="MODEL", required=True, help="SavedModel, LiteRT or ONNX folder of export, or a checkpoint"
    )
    parser.add_argument(
        "--images", metavar="FILE_OR_DIR", nargs="+", required=True, help="image files, or folders to search for images"
    )
    parser.add_argument("--ground-truth", metavar="GT.json", help="COCO annotation file with the image ids")
    parser.add_argument("--output", metavar="FILE.json", required=True, help="COCO results file to write")
    parser.add_argument(
        "--draw", metavar="FILE.png", help="also draw the first images with their detections, as PNG or JPEG"
    )
    parser.add_argument(
        "--score-thresholds",
        choices=["best-f1"],
        help="leave out detections below the score threshold of their category, which a pushed model holds",
    )
    add_tta_argument(parser)
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=int,
        default=8,
        help="images per call, unless the model was exported with a fixed number; default: 8",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: a batch size below 1, views without a meaning, or score thresholds with views.
        DataError: a model or image that cannot be read, no score thresholds, or no image that
            the ground truth lists.
    """
    from pipelines.console import quiet_run

    paths = {"--model": args.model, "--images": args.images, "--ground-truth": args.ground_truth}
    require_supported_paths(paths | {"--output": args.output, "--draw": args.draw})
    views = None if args.tta is None else views_from_text(args.tta)
    with quiet_run(None, verbose=args.verbose) as console:
        from pipelines.standalone.predict import predict

        written = predict(
            model=args.model,
            images=args.images,
            ground_truth=args.ground_truth,
            output=args.output,
            picture=args.draw,
            batch_size=args.batch_size,
            views=views,
            best_f1=args.score_thresholds is not None,
            console=console,
        )
    print("\n".join(map(one_line, written)))
    return 0
