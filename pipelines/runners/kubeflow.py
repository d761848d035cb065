"""Submits to Kubeflow Pipelines: runs, and recurring runs."""

import contextlib
import datetime
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from detection.storage.atomic import write_text
from detection.storage.temporary import scratch_folder
from pipelines.runners.kubeflow_connection import connect, translate_errors
from pipelines.runners.schedules import Recurring
from pipelines.runners.target import Target
from schemas.config.config import Config
from schemas.config.recurrence import ScheduleConfig, weekdays
from schemas.errors import ConfigError

_MAX_CONCURRENT = 10  # the server's bound
_PAGE = 100
_STATES = {"ENABLED": "ACTIVE", "DISABLED": "PAUSED"}
_ACTIONS = {"pause": "disable", "resume": "enable", "delete": "delete"}
_EQUALS = 1  # operation of a filter


class Kubeflow(Target):
    """An installation of Kubeflow Pipelines.

    Args:
        config: complete configuration.

    Raises:
        ConfigError: no token.
        CocoflowError: it cannot be reached, or refuses the credentials.
    """

    suffix = ".yaml"
    schema_2_1 = True  # the only one that open-source Kubeflow accepts
    accelerators = re.compile(r"[a-z0-9.-]+/[A-Za-z0-9_.-]+")  # Kubernetes' names of resources
    accelerator_examples = "nvidia.com/gpu or amd.com/gpu"
    has_nodes = True
    runs_drivers = False
    runs_custom_jobs = False

    def __init__(self, config: Config) -> None:
        self._name = config.run.name
        self._config = config.run.kubeflow
        self._client = connect(self._config)
        self._namespace = self._config.namespace or self._client.get_user_namespace() or None
        # For runs and for recurring runs.
        self._options: dict[str, Any] = {
            "enable_caching": None if self._config.caching else False,
            "service_account": self._config.service_account,
        }

    @staticmethod
    def write(job: dict[str, Any], defaults: Mapping[str, Any], platform: Mapping[str, Any] | None) -> str:
        """Returns a compiled pipeline as YAML: the pipeline, whose parameters get defaults, and the platform."""
        spec = job["pipelineSpec"]
        # The file has no values of parameters beside the pipeline.
        for name, described in spec["root"]["inputDefinitions"]["parameters"].items():
            described.update(defaultValue=defaults[name], isOptional=True)
        return yaml.safe_dump_all([spec, platform] if platform else [spec], sort_keys=True)

    @staticmethod
    def check_schedule(schedule: ScheduleConfig) -> None:
        """Requires that Kubeflow has what a schedule asks for.

        Raises:
            ConfigError: it has not.
        """
        if schedule.time_zone != "UTC":
            raise ConfigError(
                f"run.schedule.time_zone = {schedule.time_zone}: Kubeflow has one time zone for all recurring runs, "
                "UTC unless its administrator set CRON_SCHEDULE_TIMEZONE. Give the times in it, without time_zone."
            )
        if schedule.max_runs is not None or schedule.allow_queueing:
            key = "max_runs" if schedule.max_runs is not None else "allow_queueing"
            raise ConfigError(f"run.schedule.{key}: Kubeflow does not have it; only Vertex AI does. Remove it.")
        if schedule.max_concurrent_runs > _MAX_CONCURRENT:
            raise ConfigError(
                f"run.schedule.max_concurrent_runs = {schedule.max_concurrent_runs}: Kubeflow takes at most "
                f"{_MAX_CONCURRENT}."
            )

    def submit(self, compiled: str, parameters: Mapping[str, str | int]) -> str:
        """Starts a run and returns its id."""
        name = f"{self._name} {time.strftime('%Y-%m-%d %H-%M-%S')} {secrets.token_hex(3)}"
        experiment = self._find_experiment()
        look_for = f"the run {name!r} at {self.address('').removesuffix('/details/')}"
        with self._package(compiled) as package, self._errors(f"submit the pipeline {self._name}", look_for):
            run = self._client.run_pipeline(experiment, name, package, params=dict(parameters), **self._options)
            return str(run.run_id)

    def address(self, run: str) -> str:
        """Returns the address of a run's page."""
        host = os.environ.get("KF_PIPELINES_UI_ENDPOINT") or self._config.host or ""
        return f"{host.rstrip('/')}/#/runs/details/{run}"

    def state(self, run: str) -> tuple[str, str]:
        """Returns the state of a run, and the error message."""
        with self._errors(f"look at the run {run}"):
            found = self._client.get_run(run)
        return str(found.state), str(found.error.message or "") if found.error else ""

    def create_schedule(
        self,
        name: str,
        compiled: str,
        parameters: Mapping[str, str | int],
        schedule: ScheduleConfig,
        replaced: Recurring | None,
    ) -> Recurring:
        """Creates a recurring run, and deletes the one that it replaces when the new one exists."""
        experiment = self._find_experiment()
        look_for = f"a schedule named {name} with `schedule list`"
        with self._package(compiled) as package, self._errors(f"create the schedule {name}", look_for):
            created = self._client.create_recurring_run(
                experiment,
                name,
                start_time=_format_time(schedule.start_time),
                end_time=_format_time(schedule.end_time),
                cron_expression=to_six_fields(str(schedule.cron)),
                max_concurrency=schedule.max_concurrent_runs,
                no_catchup=True,
                params=dict(parameters),
                pipeline_package_path=package,
                **self._options,
            )
        if replaced is not None:
            self.change_schedule("delete", replaced)
        return _recurring(created)

    def schedules(self, name: str | None = None) -> list[Recurring]:
        """Returns the recurring runs of the namespace; without a name also when they last ran."""
        named = {"operation": _EQUALS, "key": "display_name", "stringValue": name}
        wanted = None if name is None else json.dumps({"predicates": [named]})
        found: list[Any] = []
        token: str | None = ""
        with self._errors("list the schedules"):
            while token is not None:
                page = self._client.list_recurring_runs(
                    page_token=token, page_size=_PAGE, namespace=self._namespace, filter=wanted
                )
                found += page.recurring_runs or []
                token = page.next_page_token or None
            return [_recurring(one, self._last_run(one) if name is None else None) for one in found]

    def change_schedule(self, action: str, schedule: Recurring) -> None:
        """Pauses, resumes or deletes a schedule."""
        with self._errors(f"{action} the schedule {schedule.name}"):
            getattr(self._client, f"{_ACTIONS[action]}_recurring_run")(schedule.id)

    def _errors(self, what: str, look_for: str | None = None) -> contextlib.AbstractContextManager[None]:
        return translate_errors(what, self._config, look_for=look_for)

    def _find_experiment(self) -> str:
        name = self._config.experiment or self._name
        with self._errors(f"create the experiment {name}"):  # or finds it
            return str(self._client.create_experiment(name, namespace=self._namespace).experiment_id)

    def _last_run(self, one: Any) -> datetime.datetime | None:
        """Returns when the newest run of a recurring run began, among the newest of its experiment."""
        page = self._client.list_runs(page_size=_PAGE, sort_by="created_at desc", experiment_id=one.experiment_id)
        times = (run.created_at for run in page.runs or [] if run.recurring_run_id == one.recurring_run_id)
        return next(times, None)

    @contextlib.contextmanager
    def _package(self, compiled: str) -> Iterator[str]:
        """Yields the path of a file with the compiled pipeline, from which the client reads."""
        with scratch_folder() as folder:
            path = Path(folder) / f"{self._name}{self.suffix}"
            write_text(path, compiled)
            yield str(path)


def to_six_fields(expression: str) -> str:
    """Returns a cron expression as Kubeflow reads it: seconds first, and Sunday as 0 only.

    >>> to_six_fields("30 3 * * 5-7")
    '0 30 3 * * 0,5,6'

    Args:
        expression: minute, hour, day of month, month, day of week.
    """
    *others, days = expression.split()
    if re.search(r"\b7\b", days) and "*" not in days:
        days = ",".join(map(str, weekdays(expression)))
    return " ".join(["0", *others, days])


def _format_time(moment: Any) -> Any:
    """Returns a time in RFC 3339, in UTC."""
    return None if moment is None else moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def _recurring(one: Any, last_run: datetime.datetime | None = None) -> Recurring:
    cron = one.trigger.cron_schedule if one.trigger is not None else None
    return Recurring(
        name=one.display_name,
        id=one.recurring_run_id,
        cron=cron.cron if cron is not None else "-",
        state=_STATES.get(str(one.status), str(one.status)),
        last_run=last_run,
    )
