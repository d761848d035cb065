"""A check of a COCO data set: everything that is wrong with it, before anything is trained.

Reads every annotation and decodes every image, as a run would; writes nothing but the
report. Looks for entries and ids that do not fit together, missing, broken, huge or
turned images, boxes and keypoints outside, masks that are none or disagree with their
box, images and annotations that are there twice, images that are in two splits, and
categories without annotations. Exit code 1 where there is a fault of any kind.
"""

import argparse

from pipelines.verbs.common import add_config_arguments, config_of

SUMMARY = "find what is wrong with a COCO data set"
EXAMPLE = "pipeline_runner.py check-data --data my_coco --report my_coco.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's flags."""
    parser.add_argument("--data", metavar="DIR", help="data set folder; same as --set data.root=DIR")
    parser.add_argument("--report", metavar="FILE.html", help="also write a page with figures and pictures")
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the verb.

    Raises:
        ConfigError: no data set is named.
        DataError: an annotation file that cannot be read, or a report that cannot be
            written.
    """
    from pipelines.console import quiet_run

    config = config_of(args)
    with quiet_run(None, verbose=args.verbose):
        from pipelines.data_conversion import check_data

        found = check_data(config, args.report)
    from pipelines.data_findings import print_findings

    print_findings(found)
    if args.report:
        print(f"Report: {args.report}")
    return 1 if found.all_faults else 0
