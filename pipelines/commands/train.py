"""Trains a detector without a pipeline.

Writes checkpoints/, logs/ (TensorBoard), saved_model/ and config.yaml to the output
folder, and the TFRecords of the data to examples/. With train.validation.every, it also
writes validation/, with the best checkpoint in best/. When called again with the same
output folder, it continues from the newest checkpoint.
"""

import argparse
import shlex

from pipelines.commands.common import add_config_arguments, config_of
from schemas.artifacts import TRAIN_SPLIT
from schemas.program import installed_command

SUMMARY = "train a detector without a pipeline"
EXAMPLE = "cocoflow train --data my_coco --output out --set train.steps=2000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add_config_arguments(parser, data=True)
    parser.add_argument("--output", metavar="DIR", required=True, help="folder for all outputs, local or gs://")
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs instead of the progress")


def resumes(_: argparse.Namespace) -> bool:
    """Returns whether the same command continues after an interruption."""
    return True


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: the data or the folder cannot be used, or training diverged.
    """
    from components.coco_example_gen.spans.dataset_files import files_of
    from detection.storage.paths import shown
    from pipelines.runs.train_alone import train_alone

    config = config_of(args)
    images = next((split.images for name, split in files_of(config.data).items() if name != TRAIN_SPLIT), None)
    model = train_alone(config, args.output, verbose=args.verbose)
    print(f"SavedModel:  {shown(model)}")
    print(f"TensorBoard: {installed_command('tensorboard')} --logdir {shlex.quote(args.output)}/logs")
    # It imports TensorFlow, whose messages the training has kept from the terminal.
    from pipelines.runs.outlook import longer_command, predict_command, training_outlook

    outlook = training_outlook(args.output)
    if outlook:
        print(f"Training:    {outlook.text}")
    if outlook and outlook.rising:
        print(f"Next:        {longer_command(args.typed, config.train, steps=outlook.steps)}")
    if images:
        print(f"Try it:      {predict_command(model, images)}")
    return 0
