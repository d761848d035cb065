"""Compares two models: the change of each metric from A to B, and whether it is significant.

A and B are two COCO results files, or two folders of evaluations. With the ground truth,
they are compared per image: differences have intervals, and the page shows the images
that changed most.
"""

import argparse

from pipelines.commands.common import require_paths
from schemas.quoting import printable

SUMMARY = "compare two models' detections, or two evaluations"
EXAMPLE = "cocoflow compare old.json new.json --ground-truth instances_val.json --output changes.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument("a", metavar="A", help="COCO results file, or folder of an evaluation")
    parser.add_argument("b", metavar="B", help="results file or folder to compare with A")
    parser.add_argument("--ground-truth", metavar="GT.json", help="COCO annotation file; required for results files")
    parser.add_argument("--images", metavar="DIR", help="folder of the ground truth's images, for the page's pictures")
    parser.add_argument(
        "--iou-type",
        choices=("bbox", "segm", "keypoints"),
        help="IoU type of results files; default: bbox; not for folders",
    )
    parser.add_argument(
        "--output", metavar="FILE.html", help="write an HTML page: metrics, error types, categories, images"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command: prints tables, and writes the page if requested.

    Raises:
        ConfigError: contradictory flags.
        DataError: a file that cannot be read, compared or written.
    """
    from rich.console import Console

    from detection.reports.evaluation.compare import (
        check_flags,
        compare,
        comparison_lines,
        comparison_tables,
        load_ground_truth,
        write_page,
    )

    require_paths(args, "A", "B", "--ground-truth", "--images", "--output")
    check_flags(
        a=args.a,
        b=args.b,
        ground_truth=args.ground_truth,
        images=args.images,
        iou_type=args.iou_type,
        output=args.output,
    )
    ground_truth = None if args.ground_truth is None else load_ground_truth(args.ground_truth)
    comparisons = compare(args.a, args.b, ground_truth=ground_truth, iou_type=args.iou_type)
    if args.output:
        write_page(args.output, comparisons, ground_truth=ground_truth, images=args.images)
    console = Console()
    for comparison in comparisons:
        for table in comparison_tables(comparison):
            console.print(table)
        for line in comparison_lines(comparison):
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
    return 0
