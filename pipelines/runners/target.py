"""A platform that runs compiled pipelines: what its row of `compiled.TARGETS` says, and what its client does."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipelines.runners.schedules import Recurring
from schemas.config.config import Config
from schemas.config.recurrence import ScheduleConfig


class Client(Protocol):
    """Connection to a platform; every method raises CocoflowError if the platform refuses it or cannot be reached."""

    def submit(self, compiled: str, parameters: Mapping[str, str | int]) -> str:
        """Starts a run and returns its name.

        Args:
            compiled: text of the compiled pipeline.
            parameters: values of this run.
        """

    def address(self, run: str) -> str:
        """Returns the address of a run's page."""

    def state(self, run: str) -> tuple[str, str]:
        """Returns the state of a run, SUCCEEDED or FAILED for example, and the error message, perhaps empty."""

    def schedules(self, name: str | None = None) -> list[Recurring]:
        """Returns the schedules of pipelines; `name` selects those with this name."""

    def create_schedule(
        self,
        name: str,
        compiled: str,
        parameters: Mapping[str, str | int],
        schedule: ScheduleConfig,
        replaced: Recurring | None,
    ) -> Recurring:
        """Creates a schedule.

        Args:
            name: name of the schedule.
            compiled: text of the compiled pipeline.
            parameters: values of its runs.
            schedule: when it runs.
            replaced: schedule of this name that it replaces; None: there is none.
        """

    def change_schedule(self, action: str, schedule: Recurring) -> None:
        """Changes a schedule; runs that began continue.

        Args:
            action: "pause" starts no more runs, "resume" continues and skips the runs in between, "delete" removes it.
            schedule: the schedule.
        """


@dataclass(frozen=True, kw_only=True)
class Target:
    """A platform that runs compiled pipelines.

    Attributes:
        suffix: ending of the compiled file, by which the platform's clients tell its format.
        schema_2_1: True for pipelines of schema 2.1, False for 2.0.
        write: returns the text of the file from the compiled job, the defaults of the pipeline's parameters,
            and the document of `resources.add_resources`, None if there is none.
        connect: returns a client; raises CocoflowError without credentials or service.
        check_schedule: raises ConfigError if the platform lacks what a schedule asks for.
        accelerators: form of the names of accelerators.
        accelerator_examples: examples of these names, for a message.
        has_nodes: True if node selectors and tolerations choose nodes.
        runs_drivers: True if drivers run before the cache is searched.
        runs_custom_jobs: True if the trainer may be a Vertex custom job.
    """

    suffix: str
    schema_2_1: bool
    write: Callable[[dict[str, Any], Mapping[str, Any], Mapping[str, Any] | None], str]
    connect: Callable[[Config], Client]
    check_schedule: Callable[[ScheduleConfig], None]
    accelerators: re.Pattern[str]
    accelerator_examples: str
    has_nodes: bool
    runs_drivers: bool
    runs_custom_jobs: bool
