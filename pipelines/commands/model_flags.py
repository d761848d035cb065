"""Flags and run of `evaluate` for a model on a data set."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.commands.common import add_config_arguments, config_of
from schemas.artifacts import REPORT_HTML
from schemas.config.config_io import parse_config
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from components.coco_evaluator.evaluation import Evaluation


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `run_model`."""
    group = parser.add_argument_group("a model on a data set")
    group.add_argument("--model", metavar="SAVED_MODEL", help="folder with saved_model.pb")
    group.add_argument(
        "--examples", dest="data", metavar="DIR", help="Examples written by the pipeline or to-examples, or a data set"
    )
    group.add_argument("--split", help="split to evaluate; same as --set evaluate.split=SPLIT; default: eval")
    group.add_argument("--baseline", metavar="SAVED_MODEL", help="model to compare with")
    group.add_argument("--verbose", action="store_true", help="show the libraries' logs")
    add_config_arguments(group)


def run_model(args: argparse.Namespace) -> int:
    """Evaluates a model: prints a table and the verdict, and writes all files to a new folder.

    Raises:
        ConfigError: conflicting flags; see `evaluate_model`.
        DataError: see `evaluate_model`.
    """
    for flag, value in (("--model", args.model), ("--examples", args.data), ("--output", args.output)):
        if value is None:
            raise ConfigError(f"evaluating a model needs --model, --examples and --output; {flag} is missing.")
    from pipelines.console import quiet_run

    config = config_of(args)
    if args.split is not None:
        tree = config.model_dump(mode="json", exclude_unset=True)
        config = parse_config(tree | {"evaluate": tree.get("evaluate", {}) | {"split": args.split}})
    with quiet_run(None, verbose=args.verbose):
        from pipelines.standalone.evaluate_model import evaluate_model

        evaluation = evaluate_model(
            config, model=args.model, examples=args.data, baseline=args.baseline, output=args.output
        )
    _print_results(evaluation, args.output)
    return 0


def _print_results(evaluation: "Evaluation", folder: str) -> None:
    from rich.console import Console

    from detection.coco.summary import summary_table

    console = Console()
    console.print(summary_table(evaluation.metrics))
    for reason in evaluation.verdict.reasons:
        console.print(reason, soft_wrap=True, highlight=False, markup=False)
    print(Path(folder, REPORT_HTML))
