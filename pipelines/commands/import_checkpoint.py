"""Imports a checkpoint of another program as a model folder.

The folder has config.yaml, categories.json and checkpoints/, like the output of train.
detection.load_detector, train.init.checkpoint, export, evaluate and predict read it.

--from automl reads google/automl's EfficientDet: checkpoints of TF1, such as the published
ones, and of TF2. EMA weights are used if the checkpoint has them. --from tpu-mask-rcnn reads
the Mask R-CNN and Faster R-CNN of tensorflow/tpu, and a ResNet alone, to start trainings from.
--from od-api reads the Object Detection API's detectors of TF2: EfficientDet, RetinaNet, SSD,
CenterNet, also with keypoints, and Faster R-CNN; and, to start trainings from, the ResNet alone of
its other networks with a ResNet v1, also of TF1. --from dfine reads weights of D-FINE, DEIM and
RT-DETRv4: their .pth files, without PyTorch, and safetensors with Hugging Face's names.

A pipeline.config beside an od-api checkpoint, as in the archives of its model zoo, gives the
detector and its settings: image size, anchors, losses, score threshold, NMS. --model is then
not needed.

90 classes become COCO's 80 categories, by id. For any other number, pass --label-map.
"""

import argparse

from detection.interop.programs import PROGRAMS
from pipelines.commands.common import add_assignments_argument, require_paths
from schemas.detectors import require_detector
from schemas.quoting import one_line

SUMMARY = "import a checkpoint of google/automl, D-FINE, TPU Mask R-CNN or the Object Detection API as a model"
EXAMPLE = (
    "cocoflow import-checkpoint --from automl --checkpoint efficientdet-d0 --model efficientdet-d0 --output models/d0"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--from", dest="program", choices=tuple(PROGRAMS), required=True, help="program that wrote the checkpoint"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="PREFIX_OR_DIR",
        required=True,
        help="checkpoint, with or without .index, or a folder: its newest checkpoint; of dfine, a .pth or .safetensors "
        "file",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="detector, such as efficientdet-d0 or mask-rcnn-r50; default, of od-api: that of the pipeline.config "
        "beside the checkpoint",
    )
    parser.add_argument("--output", metavar="DIR", required=True, help="model folder to write, new or empty")
    parser.add_argument(
        "--weights",
        choices=("auto", "ema", "raw"),
        default="auto",
        help="auto: raw weights and, if there are any, EMA weights, which are then used; ema: EMA weights are needed; "
        "raw: raw weights only; default: auto",
    )
    parser.add_argument(
        "--label-map",
        metavar="FILE",
        help="categories of the training: label_map.pbtxt, a COCO file, or config.json of a model of Hugging Face's; "
        "default: COCO's for 90 classes, of a D-FINE for 80, else the ids",
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")
    add_assignments_argument(parser, "set a key of the section model, for example --set model.image_size=640")


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: a program or model that cannot be imported, or an invalid key.
        DataError: a checkpoint or label map that cannot be read or does not fit the model, or a folder
            that cannot be written.
    """
    from pipelines.console import quiet_run

    if args.model is not None:
        require_detector(args.model, key="--model")
    require_paths(args, "--output", existing=("--checkpoint", "--label-map"))
    with quiet_run(None, verbose=args.verbose):
        from detection.interop.import_checkpoint import import_checkpoint

        import_checkpoint(
            program=args.program,
            checkpoint=args.checkpoint,
            model=args.model,
            output=args.output,
            weights=args.weights,
            label_map=args.label_map,
            assignments=args.assignments,
        )
    print(one_line(args.output))
    return 0
