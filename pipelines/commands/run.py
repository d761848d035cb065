"""Runs the pipeline, from a COCO data set to a blessed, pushed detector."""

import argparse

from pipelines.commands import submit
from pipelines.commands.common import add_config_arguments, config_of
from pipelines.runners.compiled import TARGETS
from pipelines.runners.local import RUNNERS
from schemas.errors import ConfigError

SUMMARY = "run the pipeline: COCO data set to blessed, pushed detector"
EXAMPLE = "cocoflow run --data my_coco --set run.root=runs/mine --set model.name=efficientdet-d0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's flags."""
    add_config_arguments(parser, data=True)
    parser.add_argument(
        "--runner",
        choices=(*RUNNERS, *TARGETS),
        default="local",
        help="local, beam: in this process; vertex, kubeflow: as `submit`; default: local",
    )
    parser.add_argument("--verbose", action="store_true", help="show the libraries' logs instead of the progress")
    parser.add_argument(
        "--run-id",
        metavar="ID",
        help="id of the run's record; resumes an unfinished run, refuses a finished one; default: a new one",
    )
    parser.add_argument("--trigger", metavar="TEXT", help="why it runs, for the run's record; default: command")
    parser.add_argument(
        "--if-changed",
        action="store_true",
        help="for schedulers: do nothing, with exit code 0, if neither data nor configuration changed since the last "
        "finished run, if data is still being written, or while another run is in progress; resume a failed run",
    )
    parser.add_argument(
        "--settle",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="with --if-changed: data whose files changed in the last seconds is still being written; default: 60",
    )


def resumes(args: argparse.Namespace) -> bool:
    """Returns whether the same command continues after an interruption; the other runners only submit."""
    return args.runner in RUNNERS


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: the run failed for a reason that the user can fix.
    """
    if args.runner in TARGETS:
        if args.run_id is not None or args.trigger is not None or args.if_changed:
            raise ConfigError(
                f"--run-id, --trigger and --if-changed are for runs of this process, not for --runner {args.runner}."
            )
        return submit.run(argparse.Namespace(**vars(args), parameters=[], wait=False))
    from rich.console import Console

    from pipelines.runs.execute import execute_run

    config = config_of(args)
    results = execute_run(
        config,
        runner=args.runner,
        verbose=args.verbose,
        run_id=args.run_id,
        trigger=args.trigger or "command",
        if_changed=args.if_changed,
        settle=args.settle,
    )
    if isinstance(results, str):
        print(f"nothing to do: {results}")
        return 0
    # It imports TensorFlow, whose messages the run has kept from the terminal.
    from pipelines.runs.results import print_results

    print_results(results, Console(), typed=args.typed, train_config=config.train)
    return 0
