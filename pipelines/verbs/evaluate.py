"""Exact COCO metrics of a detections file against an annotation file."""

import argparse

SUMMARY = "measure detections against ground truth: the COCO figures"
EXAMPLE = "pipeline_runner.py evaluate --ground-truth instances_val.json --detections found.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's flags."""
    parser.add_argument("--ground-truth", metavar="GT.json", required=True, help="COCO annotation file")
    parser.add_argument("--detections", metavar="DT.json", required=True, help="COCO results file")
    parser.add_argument(
        "--iou-type", choices=("bbox", "segm", "keypoints"), default="bbox", help="what is compared; default: bbox"
    )
    parser.add_argument("--output", metavar="FILE.json", help="write the figures there, too, overall and by category")


def run(args: argparse.Namespace) -> int:
    """Runs the verb: a table on stdout, and the metrics file where one is asked for.

    Raises:
        DataError: a file that cannot be read, evaluated or written.
    """
    from rich.console import Console

    from detection.coco import evaluate
    from detection.coco.report import summary_table, write_metrics

    metrics = evaluate(args.ground_truth, args.detections, args.iou_type)
    if args.output:
        write_metrics(args.output, metrics)
    Console().print(summary_table(metrics))
    return 0
