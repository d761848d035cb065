"""Computes exact COCO metrics of a detections file against its ground truth, or of a model on a data set.

With --model, --output is a folder for the files of the pipeline's CocoEvaluator:
metrics.json, detections.json, analysis.json, report.html, blessing.json and files for
TensorFlow Model Analysis. --set takes configuration keys, such as evaluate.batch_size,
evaluate.analysis.images, evaluate.thresholds.absolute and evaluate.eval_config, and
data.* if --examples is a data set.
"""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detection.storage.paths import absolute, parent, require_supported
from pipelines.commands.common import (
    add_config_arguments,
    add_model_arguments,
    add_tta_argument,
    config_of,
    require_paths,
    with_keys,
)
from schemas.errors import ConfigError
from schemas.metrics import IOU_TYPES, MetricParams
from schemas.quoting import one_line, printable

if TYPE_CHECKING:
    from components.coco_evaluator.evaluation import Evaluation

SUMMARY = "compute the COCO metrics of detections, or of a model"
EXAMPLE = """\
cocoflow evaluate --ground-truth instances_val.json --detections detections.json --report page.html
  cocoflow evaluate --model runs/demo/serving --examples my_coco --output evaluation"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    _add_file_arguments(parser)
    _add_params_arguments(parser)
    parser.set_defaults(file_defaults=vars(parser.parse_args([])))
    parser.add_argument(
        "--output",
        metavar="FILE.json",
        help="file for the metrics, overall and per category; with --model: new or empty folder for all files",
    )
    _add_model_arguments(parser)


def _add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `_run_files` but those of the params."""
    group = parser.add_argument_group("detections from a file")
    group.add_argument("--ground-truth", metavar="GT.json", help="COCO annotation file")
    group.add_argument("--detections", metavar="DT.json", help="COCO results file")
    group.add_argument(
        "--skip-invalid",
        action="store_true",
        help="leave out invalid images, annotations and detections, and list them in FILE_skipped.jsonl",
    )
    group.add_argument(
        "--report",
        metavar="FILE.html",
        help="write an HTML page: what to act on, metrics, categories, error types, curves",
    )
    group.add_argument("--images", metavar="DIR", help="folder of the ground truth's images, for the report's pictures")


def _add_params_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the COCOeval params; `_params_of` reads them."""
    group = parser.add_argument_group("COCOeval params for a file (default: COCO's)")
    forms: dict[str, tuple[str, dict[str, Any]]] = {
        "iou_type": ("--iou-type", {"choices": IOU_TYPES}),
        "max_dets": ("--max-dets", {"metavar": "N,N,N", "type": _parse_list(int)}),
        "use_cats": ("--no-cats", {"action": "store_false"}),
        "iou_thresholds": ("--iou-thresholds", {"metavar": "IOU,...", "type": _parse_list(float)}),
        "area_ranges": ("--area-range", {"metavar": "NAME=LOW,HIGH", "type": _parse_area_range, "action": "append"}),
        "oks_sigmas": ("--oks-sigmas", {"metavar": "[CATEGORY=]SIGMA,...", "type": _parse_sigmas, "action": "append"}),
        "lvis": ("--lvis", {"action": "store_true"}),
        "metrics": ("--metrics", {"metavar": "NAME,...", "type": _parse_list(str)}),
    }
    for name, field in MetricParams.model_fields.items():
        flag, form = forms[name]
        repeatable = "; repeatable" if form.get("action") == "append" else ""
        group.add_argument(flag, dest=name, default=field.default, help=f"{field.description}{repeatable}", **form)


def _params_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the flags of `_add_params_arguments` as keyword arguments of `make_params` and `evaluate`.

    Raises:
        ConfigError: a value that COCOeval has no meaning for.
    """
    from detection.coco.params import make_params

    params = {name: getattr(args, name) for name in MetricParams.model_fields}
    if args.oks_sigmas:
        sigmas = dict(args.oks_sigmas)
        if "" in sigmas and len(args.oks_sigmas) > 1:
            raise ConfigError("--oks-sigmas: specify one list for all categories, or CATEGORY=SIGMA,... for each.")
        params["oks_sigmas"] = sigmas.get("", sigmas)
    if args.area_ranges:
        params["area_ranges"] = {**make_params(args.iou_type).area_ranges, **dict(args.area_ranges)}
    make_params(**params)
    return params


def run(args: argparse.Namespace) -> int:
    """Runs the command: prints a table, and writes the files requested.

    Raises:
        ConfigError: flags that do not fit each other, or a value without a meaning.
        DataError: a file or model that cannot be read, evaluated or written.
    """
    for name in ("output", "ground_truth", "detections", "report", "images", "model", "examples", "baseline"):
        require_supported(getattr(args, name) or "", f"--{name.replace('_', '-')}")
    if args.model is not None or args.examples is not None:
        _refuse_file_flags(args)
        return _run_model(args)
    if args.checkpoint is not None:
        raise ConfigError("--checkpoint is for a model: give --model, too.")
    if args.tta is not None:
        raise ConfigError("--tta is for a model, with --model and --examples: detections from a file are as they are.")
    if None in (args.ground_truth, args.detections):
        raise ConfigError("evaluate needs --ground-truth and --detections, or --model and --examples.")
    return _run_files(args)


def _refuse_file_flags(args: argparse.Namespace) -> None:
    given = [name for name, default in args.file_defaults.items() if getattr(args, name) != default]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: for detections from a file; remove it, or --model and --examples. "
            "evaluate.iou_types and evaluate.eval_config specify how a model is evaluated."
        )


def _check_report_flags(args: argparse.Namespace) -> None:
    if args.report is None:
        if args.images is not None:
            raise ConfigError("--images is for the report's pictures: give --report, too.")
        return
    from detection.storage.files import exists, is_file

    for flag, given in (("--no-cats", not args.use_cats), ("--lvis", args.lvis), ("--skip-invalid", args.skip_invalid)):
        if given:
            raise ConfigError(
                f"--report does not go with {flag}: it reports COCO's evaluation of complete, valid files."
            )
    for path in (args.ground_truth, args.detections):
        if exists(path) and not is_file(path):
            raise ConfigError(f"--report reads {path} a second time, which a pipe does not allow. Write it to a file.")


def _run_files(args: argparse.Namespace) -> int:
    from rich.console import Console

    from detection.coco import evaluate
    from detection.coco.summary import (
        metrics_to_json,
        skipped_lines,
        skipped_path,
        skipped_to_json_lines,
        summary_table,
    )

    _check_report_flags(args)
    params = _params_of(args)
    metrics = evaluate(args.ground_truth, args.detections, **params, skip_invalid=args.skip_invalid)
    lines = skipped_lines(metrics.skipped)
    if args.output:
        from detection.storage.atomic import write_json, write_text

        if args.skip_invalid:
            write_text(skipped_path(args.output), skipped_to_json_lines(metrics.skipped))
            lines += [f"All of them: {skipped_path(args.output)}"] if lines else []
        write_json(args.output, metrics_to_json(metrics))
    if args.report:
        from detection.reports.evaluation.compare import write_file_report

        write_file_report(
            args.report, ground_truth=args.ground_truth, detections=args.detections, params=params, images=args.images
        )
    Console().print(summary_table(metrics))
    for line in [*(f"{doubt}." for doubt in metrics.doubts), *lines]:
        print(printable(line))
    return 0


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `_run_model`."""
    group = parser.add_argument_group("a model on a data set")
    add_model_arguments(group, required=False)
    group.add_argument(
        "--examples", metavar="DIR", help="Examples written by the pipeline or to-examples, or a data set"
    )
    group.add_argument("--split", help="split to evaluate; same as --set evaluate.split=SPLIT; default: eval")
    group.add_argument("--baseline", metavar="MODEL", help="model to compare with")
    add_tta_argument(group)
    group.add_argument("--verbose", action="store_true", help="show the libraries' logs")
    add_config_arguments(group)


def _run_model(args: argparse.Namespace) -> int:
    """Evaluates a model: prints a table and the verdict, writes all files to a new folder.

    Raises:
        ConfigError: flags that do not fit each other; see `evaluate_model`.
        CocoflowError: the runner of `run.beam_args` cannot be used.
        DataError: see `evaluate_model`.
    """
    for flag, value in (("--model", args.model), ("--examples", args.examples), ("--output", args.output)):
        if value is None:
            raise ConfigError(f"evaluating a model needs --model, --examples and --output; {flag} is missing.")
    from components.beam.preflight import require_runner
    from pipelines.console import quiet_run

    flags = {} if args.split is None else {"split": args.split}
    if args.tta is not None:
        flags["tta"] = args.tta.model_dump(mode="json")
    require_paths(args, existing=["--examples"], models=("--model", "--baseline"))
    config = with_keys(config_of(args), "data", {"root": args.examples}, where="--examples")
    config = with_keys(config, "evaluate", flags, where=", ".join(f"--{flag}" for flag in flags))
    with quiet_run(None, verbose=args.verbose):
        require_runner(config.run.beam_args, parent(absolute(args.output)))
        from components.coco_evaluator.evaluate_model import evaluate_model

        evaluation = evaluate_model(
            config,
            model=args.model,
            checkpoint=args.checkpoint,
            examples=args.examples,
            baseline=args.baseline,
            output=args.output,
        )
    _print_evaluation(evaluation, args.output)
    return 0


def _print_evaluation(evaluation: "Evaluation", folder: str) -> None:
    from rich.console import Console

    from detection.coco.summary import slice_table, summary_table
    from detection.storage.paths import join
    from schemas.artifacts import REPORT_HTML

    console = Console()
    for metrics in evaluation.metrics:
        console.print(summary_table(metrics))
    if evaluation.slices:
        console.print(slice_table(evaluation.slices))
    for reason in evaluation.verdict.reasons:
        console.print(printable(reason), soft_wrap=True, highlight=False, markup=False)
    print(one_line(join(folder, REPORT_HTML)))


def _parse_list(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        try:
            return tuple(kind(part) for part in text.split(","))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers separated by commas") from None

    return parse


def _parse_sigmas(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, numbers = text.rpartition("=")
    return name, _parse_list(float)(numbers)


def _parse_area_range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, limits = text.partition("=")
    try:
        low, high = map(float, limits.split(","))
    except ValueError:
        low = high = -1.0
    if not name or low < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=LOW,HIGH, such as tiny=0,256")
    return name, (low, high)
