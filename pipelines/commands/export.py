"""Exports a trained or imported model without training, for serving, mobile devices and other runtimes.

--model names the output of `train` or of a pipeline's trainer, a checkpoint (.../ckpt-500),
an imported model, a SavedModel, or a push directory (its newest version). Of a training,
the checkpoint that it exported is read, such as the best one of train.validation;
--checkpoint chooses another. --output is a new or empty folder, which appears complete or not at all.

saved-model  Runs with TensorFlow or TF Serving alone. Signatures: serving_default takes
             encoded images, serving_images a uint8 batch, serving_examples serialized
             tf.train.Examples with image/encoded. saved_model.pb is written last.
litert       model.tflite with TensorFlow Lite's built-in ops alone, and model.json, which
             describes its input and outputs. --precision float16 halves the file; int8
             computes the network in 8-bit integers and needs --calibration-data.
onnx         model.onnx (opset 18) and model.json. Needs tf2onnx.
mediapipe    model.tflite for MediaPipe Tasks' ObjectDetector on Android, iOS and the web, with
             the labels in it, and model.json. Needs a model trained with
             model.resize.mode=stretch, as --config phone does. --delegate gpu leaves the
             suppression of boxes to MediaPipe, which loses some; coral uses the op of Coral's
             models. docs/phones.md shows how to load it.

Files take images of the model's input size, resized and padded as
model.json says. client.py beside LiteRT and ONNX files does that, with NumPy, Pillow and the runtime alone.
The command compares such a file with the SavedModel on --sample-images, and prints the
differences. `predict` and `evaluate --model` take all formats.

--no-nms leaves out non-maximum suppression: the outputs are raw_detection_boxes and
raw_detection_scores of all anchors, which `predict` and `evaluate` refuse.

--od-api-outputs makes all outputs of a SavedModel float32, as those of the TF Object
Detection API's exporter, and the loaded object callable with a uint8 batch. An image that
does not decode is then an error, without the output valid.

--describe FILE exports nothing: it prints what a .tflite says about its detector to
MediaPipe Tasks (inputs, outputs, labels, score calibration), or what is wrong with it. It
needs neither --model nor --output.

--calibrate DIR fits an increasing curve per category on the images of --calibrate-split (default: eval), so that
of the detections with a score of 0.8, 80 % are right. The curves are in the exported model, and in
assets.extra/score_curves.json. The AP of each category stays. Prints the calibration error before and after.

--set changes the keys that need no training: model.postprocess.*, model.image_size,
model.resize.* and train.precision. Thresholds for serving are often higher than those for evaluation, such as
--set model.postprocess.score_threshold=0.3.
"""

import argparse

from pipelines.commands.common import add_assignments_argument, add_checkpoint_argument, require_paths
from schemas.artifacts import EVAL_SPLIT, LITERT_FILE, TRAIN_SPLIT
from schemas.errors import ConfigError, DataError
from schemas.program import require_module
from schemas.quoting import one_line

SUMMARY = "export a model as a SavedModel, LiteRT or ONNX file, without training"
EXAMPLE = """\
cocoflow export --model out/checkpoints/ckpt-500 --weights raw --output raw_model
  cocoflow export --model out --format litert --precision int8 --calibration-data my_coco --output mobile
  cocoflow export --model out --calibrate my_coco --output calibrated
  cocoflow export --describe phone"""
_LARGEST = (1 << 31) - 1  # bytes of a LiteRT file: its offsets are of 32 bits, with a sign


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    parser.add_argument(
        "--model",
        metavar="DIR_OR_CHECKPOINT",
        help="required: output of train or import-checkpoint, a checkpoint, a SavedModel of Cocoflow, run.root or push "
        "directory of a pipeline, or the name of a published detector",
    )
    add_checkpoint_argument(parser)
    parser.add_argument("--output", metavar="DIR", help="required: new or empty folder")
    parser.add_argument(
        "--describe",
        metavar="FILE",
        help="print the metadata of a .tflite, or of model.tflite in a folder; takes no other flag",
    )
    parser.add_argument(
        "--format",
        choices=("saved-model", "litert", "onnx", "mediapipe"),
        default="saved-model",
        help="default: saved-model",
    )
    parser.add_argument(
        "--weights",
        choices=("auto", "ema", "raw"),
        default="auto",
        help="EMA weights, raw weights, or those that the training exports (auto, the default)",
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=int, help="images per call; default: any number, for litert and mediapipe 1"
    )
    parser.add_argument("--no-nms", dest="nms", action="store_false", help="return the boxes and scores of all anchors")
    parser.add_argument(
        "--od-api-outputs",
        action="store_true",
        help="saved-model: float32 outputs as of the TF Object Detection API's exporter, for its clients",
    )
    parser.add_argument(
        "--sample-images",
        metavar="FILE_OR_DIR",
        nargs="+",
        default=(),
        help="litert, onnx, mediapipe: images on which the file is compared with the SavedModel; default: some of "
        "--calibration-data, or drawn ones",
    )
    parser.add_argument(
        "--calibrate",
        metavar="DIR",
        help="Examples or a data set with annotations, which the scores are calibrated on; default: scores as they are",
    )
    parser.add_argument("--calibrate-split", metavar="NAME", help=f"--calibrate: split of it; default: {EVAL_SPLIT}")
    _add_litert_arguments(parser)
    add_assignments_argument(parser, "override one key of the model's configuration")
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs")


def _add_litert_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("litert, mediapipe")
    group.add_argument(
        "--precision", choices=("float32", "float16", "int8"), default="float32", help="default: float32"
    )
    group.add_argument("--calibration-data", metavar="DIR", help="Examples or a data set, for int8")
    group.add_argument(
        "--calibration-split", metavar="NAME", default=TRAIN_SPLIT, help=f"split of it; default: {TRAIN_SPLIT}"
    )
    group.add_argument(
        "--calibration-images", metavar="N", type=int, default=100, help="number of images, evenly chosen; default: 100"
    )
    group.add_argument(
        "--delegate",
        choices=("cpu", "gpu", "coral"),
        default="cpu",
        help="mediapipe: hardware that the file is for; default: cpu",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        ConfigError: neither --model and --output nor --describe, or both; see `export_model`.
        DataError: see `export_model`, `describe`.
        CocoflowError: see `export_model`.
    """
    if args.describe is not None:
        # Any other flag: argparse takes `--d` for `--describe`.
        if others := [word for word in args.typed if word.startswith("-") and not word.startswith("--d")]:
            raise ConfigError(f"--describe exports nothing: call it without {' '.join(others)}.")
        print(_describe(args))
        return 0
    if args.model is None or args.output is None:
        raise ConfigError("export needs --model and --output, or --describe FILE.")
    from detection.storage.outputs import require_output_folder
    from pipelines.console import quiet_run

    if args.calibrate_split is not None and args.calibrate is None:
        raise ConfigError("--calibrate-split: for --calibrate DIR, which is missing.")
    if args.format == "onnx":
        require_module("tf2onnx")
    require_paths(
        args, "--output", "--calibration-data", "--sample-images", existing=["--calibrate"], models=["--model"]
    )
    require_output_folder(args.output, "--output", new=True)
    with quiet_run(None, verbose=args.verbose, phase="loading TensorFlow"):
        from components.coco_example_gen.to_examples import folder_as_examples
        from detection.export.export import export_model
        from detection.export.options import Calibration, ExportOptions
        from detection.export.score_calibration import ScoreCalibration

        options = ExportOptions(**{name: flag for name, flag in vars(args).items() if name in ExportOptions._fields})
        if args.calibration_data is not None:
            calibration = Calibration(args.calibration_data, args.calibration_split, args.calibration_images)
            options = options._replace(calibration=calibration)
        if args.calibrate is not None:
            score_calibration = ScoreCalibration(args.calibrate, args.calibrate_split or EVAL_SPLIT)
            options = options._replace(score_calibration=score_calibration)
        sentence = export_model(args.model, args.output, options, folder_as_examples)
    print(f"{one_line(args.output)}: {sentence}")
    return 0


def _describe(args: argparse.Namespace) -> str:
    """Describes a LiteRT file, or the one in a folder; without TensorFlow, in half a second."""
    from detection.export.mediapipe.describe import describe
    from detection.storage.files import find_file, is_dir, read_bytes
    from detection.storage.paths import join

    require_paths(args, existing=["--describe"])
    if is_dir(args.describe):
        args.describe = join(args.describe, LITERT_FILE)
        require_paths(args, existing=["--describe"])
    path = args.describe
    found = find_file(path)
    if found is not None and found.size > _LARGEST:
        raise DataError(f"{one_line(path)}: {found.size:,} bytes are too many for a LiteRT file. Check --describe.")
    return describe(read_bytes(path), path)
