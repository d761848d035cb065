"""Runs a model on image files, draws the detections, and writes them as a COCO results file.

--model takes a trained, imported, exported or pushed model, the `run.root` of a pipeline (its
newest pushed version), or the name of a published detector, such as efficientdet-d0, whose COCO
weights are fetched once (`cocoflow weights list`). Pass --draw, --output or both.

Detections have a box and a score, and masks (RLE) and keypoints if the model has them.

All detections are written, also those of low scores, which AP needs. --score leaves out
those of lower scores. --score-thresholds best-f1 leaves out those below the threshold of
their category: a pushed model holds the score of the highest F1 of each category in its
evaluation.

--draw DIR draws every image in its own size: a file of the same name in DIR, in folders if
the images come from several. --draw FILE.png draws the first 12 images into one picture.
The detections that are written are drawn; without --score and --score-thresholds, those of
a score of at least 0.3.

Image ids are taken from --ground-truth, by file_name. Without it, images are numbered
from 1 in the order of their paths, and the list of images is written beside the
detections as NAME_images.json, by which `evaluate` and `compare` find the images.

Images that cannot be read are left out and named; the exit code is then 3.
"""

import argparse

from pipelines.commands.common import add_model_arguments, add_tta_argument, require_paths
from schemas.errors import ConfigError
from schemas.quoting import one_line

SUMMARY = "run a model on images: pictures of the detections, COCO results"
EXAMPLE = """\
cocoflow predict --model efficientdet-d0 --images photo.jpg --draw drawn
  cocoflow predict --model runs/demo --images photos --output detections.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add_model_arguments(parser, required=True)
    parser.add_argument(
        "--images", metavar="FILE_OR_DIR", nargs="+", required=True, help="image files, or folders to search for images"
    )
    parser.add_argument("--ground-truth", metavar="GT.json", help="COCO annotation file with the image ids")
    parser.add_argument("--output", metavar="FILE.json", help="COCO results file to write")
    parser.add_argument(
        "--draw",
        metavar="DIR_OR_FILE",
        help="also draw the detections: a folder for each image in its own size, or a PNG or JPEG file for the first "
        "images",
    )
    parser.add_argument("--score", metavar="NUMBER", type=float, help="leave out detections of lower scores, 0 to 1")
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
        ConfigError: neither --output nor --draw, a batch size below 1, a score outside 0 to 1, views
            without a meaning, exclusive options, or pictures in another format or in place of the images.
        DataError: a model that cannot be read, no image that can, no score thresholds, views with a model of
            masks or keypoints, or no image that the ground truth lists.
    """
    from pipelines.console import quiet_run

    if args.output is None and args.draw is None:
        raise ConfigError("predict needs --draw, --output or both: a folder for pictures, a file for COCO results.")
    require_paths(args, "--output", "--draw", existing=("--images", "--ground-truth"), models=["--model"])
    with quiet_run(None, verbose=args.verbose) as console:
        from detection.inference.predict import predict

        written, skipped = predict(
            model=args.model,
            checkpoint=args.checkpoint,
            images=args.images,
            ground_truth=args.ground_truth,
            output=args.output,
            pictures=args.draw,
            batch_size=args.batch_size,
            views=args.tta,
            min_score=args.score,
            best_f1=args.score_thresholds is not None,
            console=console,
        )
    print("\n".join(map(one_line, written)))
    return 3 if skipped else 0
