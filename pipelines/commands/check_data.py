"""Checks a COCO data set: whether a run can train on it, its issues, and a remedy for each.

Reads every annotation and decodes every image, as a run does. Writes only the report.
Checks ids and required fields; missing, damaged, huge or rotated images; boxes and
keypoints outside the image; invalid masks and masks that disagree with their box;
duplicate images and annotations; images in two splits; categories without annotations.
Exit codes: 0: no issues; 3: a run trains, but there are issues, and data.on_fault drops,
fixes or keeps what has them; 1: a run stops at the issues, or a split has no valid image.
"""

import argparse

from pipelines.commands.common import add_config_arguments, config_of, require_paths
from schemas.quoting import one_line

SUMMARY = "check a COCO data set before training: issues and remedies"
EXAMPLE = "cocoflow check-data --data my_coco --report my_coco.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add_config_arguments(parser, data=True)
    parser.add_argument(
        "--report", metavar="FILE.html", help="also write an HTML page: what to act on, statistics, pictures of issues"
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: no data set is named.
        DataError: an annotation file that cannot be read, or a report that cannot be
            written.
    """
    from components.coco_example_gen.spans.dataset_files import files_of
    from detection.storage.outputs import require_output_file
    from pipelines.console import quiet_run

    require_paths(args, "--data", "--report")
    config = config_of(args)
    # Both refuse before TensorFlow is loaded.
    files_of(config.data)
    if args.report is not None:
        require_output_file(args.report, "--report")
    with quiet_run(None, verbose=args.verbose, phase="loading TensorFlow"):
        from components.coco_example_gen.check_data import check_data, print_examination

        examination = check_data(config, args.report)
    exit_code = print_examination(examination, config)
    if args.report:
        print(f"Report: {one_line(args.report)}")
    return exit_code
