"""Runs the pipeline again and again on Vertex AI Pipelines or Kubeflow Pipelines, at the times of a cron expression.

`schedule create` compiles the pipeline and leaves it with the platform, which starts the runs; nothing has to
stay running here. Its defaults are in the section run.schedule.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from pipelines.commands.common import add_config_arguments, config_of, with_keys
from pipelines.commands.submit import add_pipeline_arguments, add_target_argument
from pipelines.runners.compiled import TARGETS

if TYPE_CHECKING:
    from schemas.config.config import Config

SUMMARY = "run the pipeline at fixed times on Vertex AI Pipelines or Kubeflow Pipelines"
EXAMPLE = (
    "cocoflow schedule create --runner vertex --config mine.yaml --name nightly \\\n"
    "      --cron '0 3 * * *' --time-zone Europe/Berlin\n"
    "  cocoflow schedule list --runner vertex --config mine.yaml\n"
    "  cocoflow schedule pause nightly --runner vertex --config mine.yaml"
)
# Action -> its past tense, and its help.
_ACTIONS = {
    "pause": ("paused", "start no more runs; running ones continue"),
    "resume": ("resumed", "continue a paused schedule"),
    "delete": ("deleted", "remove a schedule; its runs stay"),
}
# Flag -> key of run.schedule, and its help.
_FLAGS = {
    "--cron": ("cron", "'MINUTE HOUR DAY MONTH WEEKDAY'", "times of the runs: '0 3 * * 1-5'"),
    "--time-zone": ("time_zone", "NAME", "time zone of cron, such as Europe/Berlin; default: UTC"),
    "--start": ("start", "TIME", "no run before this time: 2027-01-31T03:00"),
    "--end": ("end", "TIME", "no run after this time"),
    "--max-concurrent-runs": ("max_concurrent_runs", "N", "max runs at the same time; default: 1"),
    "--max-runs": ("max_runs", "N", "the schedule ends after this number of runs; Vertex only"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommands and their flags."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="compile the pipeline and schedule its runs")
    add_target_argument(create)
    create.add_argument("--name", help="name of the schedule; default: run.name")
    for flag, (key, metavar, what) in _FLAGS.items():
        create.add_argument(flag, dest=f"schedule_{key}", metavar=metavar, help=what)
    create.add_argument(
        "--allow-queueing",
        dest="schedule_allow_queueing",
        action="store_const",
        const="true",
        help="runs beyond --max-concurrent-runs wait instead of being left out; Vertex only",
    )
    create.add_argument("--replace", action="store_true", help="change the schedule of this name, if there is one")
    add_pipeline_arguments(create)
    listing = actions.add_parser("list", help="show all schedules: name, cron, state, next and last run")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    _add_place_arguments(listing)
    for action, (_, what) in _ACTIONS.items():
        one = actions.add_parser(action, help=what)
        one.add_argument("name", metavar="NAME", help="name or id of the schedule")
        _add_place_arguments(one)


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_argument(parser)
    add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        CocoflowError: the service refused it, or cannot be reached.
    """
    from pipelines.runners.schedules import print_schedules, to_json
    from pipelines.runners.submit import change_schedule, create_schedule

    if args.action == "create":
        created = create_schedule(
            _with_flags(config_of(args, here=False), args),
            args.runner,
            args.parameters,
            name=args.name,
            replace=args.replace,
            verbose=args.verbose,
        )
        print(f"scheduled: {created.id}")
        return 0
    if args.action == "list":
        schedules = TARGETS[args.runner](config_of(args, here=False)).schedules()
        if args.json:
            print(to_json(schedules))
        else:
            print_schedules(schedules)
        return 0
    change_schedule(config_of(args, here=False), args.runner, args.action, args.name)
    print(f"{_ACTIONS[args.action][0]}: {args.name}", file=sys.stderr)
    return 0


def _with_flags(config: "Config", args: argparse.Namespace) -> "Config":
    """Sets the keys of `run.schedule` whose flags are given."""
    flags = {key.removeprefix("schedule_"): text for key, text in vars(args).items() if key.startswith("schedule_")}
    given = {key: text for key, text in flags.items() if text is not None}
    schedule = config.run.schedule.model_dump(mode="json", exclude_unset=True) | given
    where = ", ".join(f"--{key.replace('_', '-')}" for key in given)
    return with_keys(config, "run", {"schedule": schedule}, where=where)
