"""Converts TFRecords (Examples, or other tools' records) to COCO files, and optionally writes the images.

Images and annotations of Cocoflow's own records are unchanged. Boxes, masks and keypoints
of records written by the TF Object Detection API or google/automl are converted to
pixels, after a report of the records' contents. Each of several splits has its own file:
FILE_<split>.json.
"""

import argparse

from pipelines.commands.common import require_paths
from schemas.quoting import printable

SUMMARY = "convert TFRecords, Cocoflow's or other tools', to COCO files"
EXAMPLE = "cocoflow to-coco --examples 'old/*.record-*' --label-map old/label_map.pbtxt --output old.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--examples",
        metavar="DIR_OR_GLOB",
        required=True,
        help="folder of Examples (Split-*/ and dataset.json), or a folder, file or pattern of TFRecords",
    )
    parser.add_argument("--output", metavar="FILE.json", required=True, help="COCO file to write")
    parser.add_argument("--split", metavar="NAME", help="convert only this split, to FILE.json")
    parser.add_argument("--images", metavar="DIR", help="folder for the image files; must be new or empty")
    parser.add_argument(
        "--label-map",
        metavar="FILE",
        help="categories: label_map.pbtxt or a COCO file; default: the categories of the records",
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: no such split.
        DataError: records that cannot be read, or files that cannot be written.
    """
    from pipelines.console import quiet_run

    require_paths(args, "--examples", "--output", "--images", "--label-map")
    with quiet_run(None, verbose=args.verbose) as console:
        from detection.datasets.importers.to_coco import export_coco

        lines = export_coco(
            examples=args.examples,
            output=args.output,
            split=args.split,
            images=args.images,
            label_map=args.label_map,
            console=console,
        )
    print(printable("\n".join(lines)))
    return 0
