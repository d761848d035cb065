"""Exact COCO metrics of a detections file against an annotation file."""

import argparse
from collections.abc import Callable
from typing import Any

SUMMARY = "measure detections against ground truth: the COCO figures"
EXAMPLE = "pipeline_runner.py evaluate --ground-truth instances_val.json --detections found.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's flags."""
    parser.add_argument("--ground-truth", metavar="GT.json", required=True, help="COCO annotation file")
    parser.add_argument("--detections", metavar="DT.json", required=True, help="COCO results file")
    parser.add_argument("--output", metavar="FILE.json", help="write the figures there, too, overall and by category")
    parser.add_argument(
        "--skip-invalid",
        action="store_true",
        help="leave faulty records out and evaluate the rest; all of them are listed in FILE_skipped.jsonl",
    )
    add_settings_arguments(parser)


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how detections are measured; `settings_of` reads them."""
    group = parser.add_argument_group("how it is measured (default: as COCO does)")
    group.add_argument(
        "--iou-type", choices=("bbox", "segm", "keypoints"), default="bbox", help="what is compared; default: bbox"
    )
    group.add_argument(
        "--max-dets",
        metavar="N,N,N",
        type=_list_of(int),
        help="best detections an image that count; default: 1,10,100, for keypoints 20, for LVIS 300",
    )
    group.add_argument(
        "--no-cats", dest="use_cats", action="store_false", help="evaluate as if there were one category"
    )
    group.add_argument(
        "--iou-thresholds", metavar="IOU,...", type=_list_of(float), help="default: 0.5,0.55,0.6,... 0.95"
    )
    group.add_argument(
        "--area-range",
        dest="area_ranges",
        metavar="NAME=LOW,HIGH",
        type=_area_range,
        action="append",
        default=[],
        help="figures for objects of such an area in square pixels; may be given many times; "
        "small, medium and large replace COCO's",
    )
    group.add_argument(
        "--oks-sigmas", metavar="SIGMA,...", type=_list_of(float), help="one for each keypoint; default: COCO's 17"
    )
    group.add_argument(
        "--lvis", action="store_true", help="evaluate as LVIS does; the files need its lists of categories"
    )


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of `add_settings_arguments` as keyword arguments of `make_settings` and `evaluate`.

    Raises:
        ConfigError: a value that COCOeval has no meaning for.
    """
    from detection.coco.settings import make_settings

    settings = {
        "iou_type": args.iou_type,
        "use_cats": args.use_cats,
        "iou_thresholds": args.iou_thresholds,
        "oks_sigmas": args.oks_sigmas,
        "lvis": args.lvis,
        **({"max_dets": args.max_dets} if args.max_dets else {}),
    }
    if args.area_ranges:
        settings["area_ranges"] = {**make_settings(args.iou_type).area_ranges, **dict(args.area_ranges)}
    make_settings(**settings)
    return settings


def run(args: argparse.Namespace) -> int:
    """Runs the verb: a table on stdout, and the metrics file where one is asked for.

    Raises:
        ConfigError: a flag's value has no meaning.
        DataError: a file that cannot be read, evaluated or written.
    """
    from rich.console import Console

    from detection.coco import evaluate
    from detection.coco.report import skipped_lines, skipped_path, summary_table, write_metrics, write_skipped

    metrics = evaluate(args.ground_truth, args.detections, **settings_of(args), skip_invalid=args.skip_invalid)
    lines = skipped_lines(metrics.skipped)
    if args.output:
        if args.skip_invalid:
            write_skipped(skipped_path(args.output), metrics.skipped)
            lines += [f"All of them: {skipped_path(args.output)}"] if lines else []
        write_metrics(args.output, metrics)
    Console().print(summary_table(metrics))
    for line in lines:
        print(line)
    return 0


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: numbers separated by commas are wanted") from None

    return parse


def _area_range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, limits = text.partition("=")
    try:
        low, high = map(float, limits.split(","))
    except ValueError:
        low = high = -1.0
    if not name or low < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted is NAME=LOW,HIGH, such as tiny=0,256")
    return name, (low, high)
