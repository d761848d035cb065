"""Converts a COCO data set to Examples without a pipeline: the records of the pipeline's CocoExampleGen.

Writes Split-<name>/ with TFRecords, dataset.json (categories, info, licences),
quarantine.jsonl (images and annotations that were left out, with the reason) and
data_report.html. Invalid images and annotations are left out by default. data.on_fault
changes this: --set data.on_fault=fail stops, --set data.on_fault=fix corrects what can
be corrected.
"""

import argparse

from components.beam.preflight import require_runner
from detection.storage.paths import absolute, parent
from pipelines.commands.common import add_config_arguments, config_of, require_paths
from schemas.quoting import one_line

SUMMARY = "convert a COCO data set to TFRecords, without a pipeline"
EXAMPLE = "cocoflow to-examples --data my_coco --output my_examples"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add_config_arguments(parser, data=True)
    parser.add_argument("--output", metavar="DIR", required=True, help="output folder; must be new or empty")
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: no data set is named.
        CocoflowError: the runner of `run.beam_args` cannot be used.
        DataError: the data cannot be used, or the folder cannot be written.
    """
    from components.coco_example_gen.spans.dataset_files import files_of
    from pipelines.console import quiet_run

    require_paths(args, "--data", "--output")
    config = config_of(args)
    with quiet_run(None, verbose=args.verbose):
        require_runner(config.run.beam_args, parent(absolute(args.output)))
        files_of(config.data)  # refuses before TensorFlow is loaded
        from components.coco_example_gen.to_examples import write_examples

        write_examples(config, args.output)
    print(one_line(args.output))
    return 0
