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

from detection.storage.atomic import write_text
from detection.storage.output_folders import scratch_folder
from pipelines.runners.compiled import TARGETS
from pipelines.runners.kubeflow_connection import KubeflowConnection
from pipelines.runners.schedules import Recurring, only
from schemas.config.config import Config
from schemas.config.recurrence import ScheduleConfig, weekdays
from schemas.errors import CocoflowError, ConfigError

POLL_SECONDS = 30.0  # between looks at a running pipeline
_MAX_CONCURRENT = 10  # the server's bound
_PAGE = 100
_ENDED = ("SUCCEEDED", "FAILED", "CANCELED", "SKIPPED")
_STATES = {"ENABLED": "ACTIVE", "DISABLED": "PAUSED"}
_EQUALS = 1  # operation of a filter


class Kubeflow:
    """An installation of Kubeflow Pipelines.

    Args:
        config: whole configuration.

    Raises:
        ConfigError: no token.
        CocoflowError: it cannot be reached, or refuses the credentials.
    """

    def __init__(self, config: Config) -> None:
        self._name = config.run.name
        self._config = config.run.kubeflow
        self._experiment = self._config.experiment or config.run.name
        self._connection = KubeflowConnection(self._config)
        self._client = self._connection.client
        self._namespace = self._config.namespace or self._client.get_user_namespace() or None

    def submit(self, compiled: str, parameters: Mapping[str, str | int]) -> str:
        """Starts a run, and returns its id.

        Args:
            compiled: text of the compiled pipeline.
            parameters: values of this run.

        Raises:
            CocoflowError: the service refused it, or cannot be reached.
        """
        experiment = self._experiment_id()
        name = f"{self._name} {time.strftime('%Y-%m-%d %H-%M-%S')} {secrets.token_hex(3)}"

        def create(package: str) -> str:
            # An earlier attempt may have started it although its answer was lost.
            lost = self._client.list_runs(experiment_id=experiment, filter=_name_is(name)).runs
            if lost:
                return str(lost[0].run_id)
            run = self._client.run_pipeline(
                experiment,
                name,
                package,
                params=dict(parameters),
                enable_caching=None if self._config.caching else False,
                service_account=self._config.service_account,
            )
            return str(run.run_id)

        with self._package(compiled) as package:
            return self._connection.repeated(lambda: create(package), f"submit the pipeline {self._name}")

    def address(self, run: str) -> str:
        """Returns the address of a run's page."""
        host = os.environ.get("KF_PIPELINES_UI_ENDPOINT") or self._config.host or ""
        return f"{host.rstrip('/')}/#/runs/details/{run}"

    def wait(self, run: str) -> None:
        """Waits for the end of a run.

        Raises:
            CocoflowError: it did not succeed.
        """
        while True:
            found = self._connection.repeated(lambda: self._client.get_run(run), f"look at the run {run}")
            if found.state in _ENDED:
                break
            time.sleep(POLL_SECONDS)
        if found.state != "SUCCEEDED":
            reason = f": {found.error.message}" if found.error is not None and found.error.message else ""
            raise CocoflowError(f"the run {run} ended as {found.state}{reason}. Its log is at {self.address(run)}.")

    def create_schedule(
        self, name: str, compiled: str, parameters: Mapping[str, str | int], schedule: ScheduleConfig, *, replace: bool
    ) -> Recurring:
        """Creates a recurring run, or one in place of those of this name.

        Args:
            name: of the recurring run.
            compiled: text of the compiled pipeline.
            parameters: values of its runs.
            schedule: when it runs.
            replace: delete a recurring run of this name after the new one is there.

        Raises:
            CocoflowError: one of this name exists, or the service refused it.
        """
        existing = self._named(name)
        if existing and not replace:
            raise CocoflowError(
                f"a schedule is named {name} already ({existing[0].recurring_run_id}). Give another --name, or change "
                "it with --replace."
            )
        if existing:
            only([_recurring(one) for one in existing], name)
        experiment, known = self._experiment_id(), {one.recurring_run_id for one in existing}

        def create(package: str) -> Any:
            # An earlier attempt may have created it although its answer was lost.
            lost = [one for one in self._named(name) if one.recurring_run_id not in known]
            return (
                lost[0]
                if lost
                else self._client.create_recurring_run(
                    experiment,
                    name,
                    start_time=_time_text(schedule.start_time),
                    end_time=_time_text(schedule.end_time),
                    cron_expression=six_fields(str(schedule.cron)),
                    max_concurrency=schedule.max_concurrent_runs,
                    no_catchup=True,
                    params=dict(parameters),
                    pipeline_package_path=package,
                    enable_caching=None if self._config.caching else False,
                    service_account=self._config.service_account,
                )
            )

        with self._package(compiled) as package:
            created = self._connection.repeated(lambda: create(package), f"create the schedule {name}")
        for one in existing:
            self._delete(one.recurring_run_id, name)
        return _recurring(created)

    def schedules(self) -> list[Recurring]:
        """Returns all recurring runs of the namespace."""
        found = self._recurring_runs(None, "list the schedules")
        return [_recurring(one, self._last_run(one)) for one in found]

    def pause_schedule(self, name: str) -> None:
        """Starts no more runs until the schedule is resumed; those that began go on.

        Raises:
            CocoflowError: no such schedule, several, or the service refused it.
        """
        number = self._id_of(name)
        self._connection.repeated(lambda: self._client.disable_recurring_run(number), f"pause the schedule {name}")

    def resume_schedule(self, name: str) -> None:
        """Continues a paused schedule; the runs in between are left out.

        Raises:
            CocoflowError: see `pause_schedule`.
        """
        number = self._id_of(name)
        self._connection.repeated(lambda: self._client.enable_recurring_run(number), f"resume the schedule {name}")

    def delete_schedule(self, name: str) -> None:
        """Removes a schedule; its runs stay.

        Raises:
            CocoflowError: see `pause_schedule`.
        """
        self._delete(self._id_of(name), name)

    def _delete(self, number: str, name: str) -> None:
        self._connection.repeated(lambda: self._client.delete_recurring_run(number), f"delete the schedule {name}")

    def _experiment_id(self) -> str:
        def create() -> str:
            made = self._client.create_experiment(self._experiment, namespace=self._namespace)
            return str(made.experiment_id)

        return self._connection.repeated(create, f"create the experiment {self._experiment}")

    def _named(self, name: str) -> list[Any]:
        return self._recurring_runs(_name_is(name), f"find the schedule {name}")

    def _recurring_runs(self, wanted: str | None, what: str) -> list[Any]:
        found: list[Any] = []
        token = ""
        while True:
            page = self._connection.repeated(
                lambda token=token: self._client.list_recurring_runs(
                    page_token=token, page_size=_PAGE, namespace=self._namespace, filter=wanted
                ),
                what,
            )
            found += page.recurring_runs or []
            token = page.next_page_token
            if not token:
                return found

    def _last_run(self, one: Any) -> Any:
        """Returns when the newest run of a recurring run began, among the newest of its experiment."""
        page = self._connection.repeated(
            lambda: self._client.list_runs(page_size=_PAGE, sort_by="created_at desc", experiment_id=one.experiment_id),
            "list the runs",
        )
        times = [run.created_at for run in page.runs or [] if run.recurring_run_id == one.recurring_run_id]
        return times[0] if times else None

    def _id_of(self, name: str) -> str:
        found = [_recurring(one) for one in self._named(name)]
        if not found:
            found = [one for one in map(_recurring, self._recurring_runs(None, "list the schedules")) if one.id == name]
        return only(found, name).id

    @contextlib.contextmanager
    def _package(self, compiled: str) -> Iterator[str]:
        """Yields the path of a file with the compiled pipeline, from which the client reads."""
        with scratch_folder() as folder:
            path = Path(folder) / f"{self._name}{TARGETS['kubeflow']}"
            write_text(path, compiled)
            yield str(path)


def require_supported(schedule: ScheduleConfig) -> None:
    """Requires that Kubeflow has what a schedule asks for.

    Raises:
        ConfigError: it has not.
    """
    if schedule.time_zone != "UTC":
        raise ConfigError(
            f"run.schedule.time_zone = {schedule.time_zone}: Kubeflow has one time zone for all recurring runs, UTC "
            "unless its administrator set CRON_SCHEDULE_TIMEZONE. Give the times in it, without time_zone."
        )
    if schedule.max_runs is not None or schedule.allow_queueing:
        key = "max_runs" if schedule.max_runs is not None else "allow_queueing"
        raise ConfigError(f"run.schedule.{key}: Kubeflow does not have it; only Vertex AI does. Remove it.")
    if schedule.max_concurrent_runs > _MAX_CONCURRENT:
        raise ConfigError(
            f"run.schedule.max_concurrent_runs = {schedule.max_concurrent_runs}: Kubeflow takes at most "
            f"{_MAX_CONCURRENT}."
        )


def six_fields(expression: str) -> str:
    """Returns a cron expression as Kubeflow reads it: seconds first, and Sunday as 0 only.

    >>> six_fields("30 3 * * 5-7")
    '0 30 3 * * 0,5,6'

    Args:
        expression: minute, hour, day of month, month, day of week.
    """
    *others, days = expression.split()
    if re.search(r"\b7\b", days) and "*" not in days:
        days = ",".join(map(str, weekdays(expression)))
    return " ".join(["0", *others, days])


def _name_is(name: str) -> str:
    return json.dumps({"predicates": [{"operation": _EQUALS, "key": "display_name", "stringValue": name}]})


def _time_text(moment: Any) -> Any:
    """Returns a time in RFC 3339, in UTC."""
    return None if moment is None else moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")


def _recurring(one: Any, last_run: Any = None) -> Recurring:
    cron = one.trigger.cron_schedule if one.trigger is not None else None
    return Recurring(
        name=one.display_name,
        id=one.recurring_run_id,
        cron=cron.cron if cron is not None else "-",
        state=_STATES.get(str(one.status), str(one.status)),
        last_run=last_run,
    )
