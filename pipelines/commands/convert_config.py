"""Converts the configuration of another program to a configuration file for --config.

--from od-api reads a pipeline.config of the TF Object Detection API, --from automl hparams of
google/automl's EfficientDet, and --from tpu-mask-rcnn params of TPU Mask R-CNN; the last two
are a YAML file or key=value,key=value.  --trainer chooses between the original's TensorFlow 1 and 2.

What is not set has the original's default, not ours. Each field has an equivalent key, or is
listed with its line: fields without an equivalent end the command with exit code 2, unless
--accept-unsupported is given; then they are comments at the top of the file. So are notes, for
example on fields that the original ignores, too.

The file has the keys that differ from Cocoflow's defaults. Check its paths, and start with
cocoflow run --config FILE, or import the original's checkpoint first: import-checkpoint.
"""

import argparse
import sys

from detection.interop.programs import CONFIGURED, PROGRAMS, read_config_of
from pipelines.commands.common import require_paths
from schemas.errors import ConfigError
from schemas.quoting import one_line

SUMMARY = "convert a configuration of the Object Detection API, google/automl or TPU Mask R-CNN"
EXAMPLE = "cocoflow convert-config --from od-api pipeline.config --output cocoflow.yaml"

_ADVICE = "Remove these fields, or pass --accept-unsupported to convert the others."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--from", dest="program", choices=CONFIGURED, required=True, help="program of the configuration"
    )
    parser.add_argument(
        "original",
        metavar="FILE_OR_KEYS",
        help="pipeline.config; of automl and tpu-mask-rcnn, a YAML file or key=value,key=value",
    )
    parser.add_argument("--output", metavar="FILE.yaml", required=True, help="configuration file to write")
    parser.add_argument(
        "--accept-unsupported", action="store_true", help="convert the others if fields have no equivalent"
    )
    parser.add_argument("--batch-size", metavar="N", type=int, help="of automl: its flag of that name; default: 64")
    parser.add_argument(
        "--trainer",
        choices=("tf1", "tf2"),
        help="of automl: tf2: its tf2/train.py; tf1: its main.py; default: tf2; of od-api: tf2: model_main_tf2.py; "
        "tf1: legacy/train.py; default: by the type of the feature extractor",
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: not a configuration of the program, or one that is not supported.
        DataError: a file that cannot be read or written.
    """
    from pipelines.console import quiet_run

    flags = {"batch_size": args.batch_size, "trainer": args.trainer}
    options = {name: value for name, value in flags.items() if value is not None}
    for name, programs in {"batch_size": ("automl",), "trainer": ("automl", "od-api")}.items():
        if name in options and args.program not in programs:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is of --from {' and '.join(programs)}; remove it.")
    require_paths(args, "--output", existing=() if "=" in args.original else ("original",))
    with quiet_run(None, verbose=args.verbose):
        from detection.storage.atomic import write_text

        conversion = read_config_of(args.program, args.original, **options)
        if not args.accept_unsupported:
            conversion.require_supported(args.original, _ADVICE)
        write_text(args.output, conversion.to_yaml(args.original, PROGRAMS[args.program]))
    for remark in conversion.unsupported:
        print(f"not supported: {one_line(remark)}", file=sys.stderr)
    for remark in conversion.notes:
        print(f"note: {one_line(remark)}", file=sys.stderr)
    print(one_line(args.output))
    return 0
