"""Compiles the pipeline and submits it, once or on a schedule, with the client of its target."""

import contextlib
import difflib
import time
from collections.abc import Callable, Sequence

from detection.storage.files import is_bucket_missing
from detection.storage.paths import split
from pipelines.console import quiet_run
from pipelines.runners.compiled import TARGETS, compile_pipeline, require_compilable
from pipelines.runners.schedules import Recurring, require_one
from pipelines.runners.target import Target
from schemas.config.config import Config
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS, with_parameters
from schemas.errors import CocoflowError, ConfigError, DataError
from schemas.quoting import quoted

POLL_SECONDS = 30.0  # between looks at a run
_MAX_FAILED_LOOKS = 10  # in a row, until the service counts as gone
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED", "CANCELED", "SKIPPED")
_NAME_LENGTH = 128


def submit(
    config: Config,
    target: str,
    assignments: Sequence[str] = (),
    *,
    record: Callable[[str], None],
    wait: bool = False,
    verbose: bool = False,
) -> tuple[str, str]:
    """Compiles the pipeline and submits it.

    Args:
        config: complete configuration; its paths are those of the containers.
        target: key of `TARGETS`.
        assignments: values of parameters, `NAME=VALUE`.
        record: called with the run's name when it is submitted.
        wait: whether to wait for the end of the run.
        verbose: send the libraries' logs to the terminal.

    Returns:
        Name of the run, and the address of its page.

    Raises:
        ConfigError: see `compile_pipeline` and `parameters_of`.
        CocoflowError: no credentials, no bucket, or the service refused the pipeline; or the run failed.
    """
    parameters = parameters_of(config, assignments)
    with quiet_run(None, verbose=verbose) as terminal:
        client = _connect(config, target)
        run = client.submit(compile_pipeline(config, target), parameters)
        record(run)
        if wait:
            terminal.print(f"submitted {run}; waiting for its end", highlight=False, markup=False, soft_wrap=True)
            _wait(client, run)
        return run, client.address(run)


def create_schedule(
    config: Config,
    target: str,
    assignments: Sequence[str] = (),
    *,
    name: str | None = None,
    replace: bool = False,
    verbose: bool = False,
) -> Recurring:
    """Compiles the pipeline and creates a schedule of its runs.

    Args:
        config: complete configuration, with `run.schedule.cron`.
        target: key of `TARGETS`.
        assignments: values of parameters, `NAME=VALUE`.
        name: of the schedule; None: `run.name`.
        replace: change a schedule of this name, if there is one.
        verbose: send the libraries' logs to the terminal.

    Raises:
        ConfigError: see `submit`; or no cron expression, or a key that the target does not have.
        CocoflowError: see `submit`; or a schedule of this name exists.
    """
    schedule = config.run.schedule
    if schedule.cron is None:
        raise ConfigError(
            "schedule create needs a time: --cron '0 3 * * *', or run.schedule.cron in the configuration."
        )
    name = config.run.name if name is None else name
    if not 0 < len(name) <= _NAME_LENGTH:
        raise ConfigError(f"--name {quoted(name)}: a schedule's name has 1 to {_NAME_LENGTH} characters.")
    TARGETS[target].check_schedule(schedule)
    parameters = parameters_of(config, assignments)
    with quiet_run(None, verbose=verbose):
        client = _connect(config, target)
        existing = client.schedules(name)
        if existing and not replace:
            raise CocoflowError(
                f"a schedule is named {name} already ({existing[0].id}). Give another --name, or change it with "
                "--replace."
            )
        replaced = require_one(existing, name) if existing else None
        return client.create_schedule(name, compile_pipeline(config, target), parameters, schedule, replaced)


def change_schedule(config: Config, target: str, action: str, name: str) -> None:
    """Pauses, resumes or deletes a schedule.

    Args:
        config: complete configuration.
        target: key of `TARGETS`.
        action: "pause", "resume" or "delete".
        name: name of the schedule, its id, or the last part of its id.

    Raises:
        CocoflowError: no such schedule, several, or the service refused it.
    """
    client = TARGETS[target](config)
    found = client.schedules(name) or [one for one in client.schedules() if name in (one.id, one.id.rpartition("/")[2])]
    client.change_schedule(action, require_one(found, name))


def parameters_of(config: Config, assignments: Sequence[str]) -> dict[str, str | int]:
    """Reads values of parameters, and validates them as the components will.

    Args:
        config: complete configuration.
        assignments: `NAME=VALUE` of `RUNTIME_PARAMETERS`.

    Raises:
        ConfigError: an unknown name, or an invalid value.
    """
    values: dict[str, str | int] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator or name not in RUNTIME_PARAMETERS:
            [nearest] = difflib.get_close_matches(name, RUNTIME_PARAMETERS, 1, 0.0)
            names = ", ".join(RUNTIME_PARAMETERS)
            raise ConfigError(
                f"--parameter {quoted(assignment)}: expected NAME=VALUE with one of {names}. The nearest is {nearest}."
            )
        try:
            values[name] = RUNTIME_PARAMETERS[name].kind(text)
        except ValueError:
            raise ConfigError(f"--parameter {name}={quoted(text)}: a whole number is needed.") from None
    with_parameters(config, values)
    return values


def _connect(config: Config, target: str) -> Target:
    """Checks what the run needs, and connects, before the pipeline is compiled for 20 seconds."""
    require_compilable(config, target)
    client = TARGETS[target](config)
    _require_buckets(config)
    return client


def _wait(client: Target, run: str) -> None:
    """Waits for the end of a run.

    Raises:
        CocoflowError: it did not succeed, or the service cannot be reached for several minutes.
    """
    failed_looks, state, error = 0, "", ""
    while state not in _ENDED:
        try:
            state, error = client.state(run)
            failed_looks = 0
        except CocoflowError:
            failed_looks += 1
            if failed_looks == _MAX_FAILED_LOOKS:
                raise
        if state not in _ENDED:
            time.sleep(POLL_SECONDS)
    if state != "SUCCEEDED":
        reason = f": {error}" if error else ""
        raise CocoflowError(f"the run {run} ended as {state}{reason}. Its log is at {client.address(run)}.")


def _require_buckets(config: Config) -> None:
    """Requires the buckets that the run writes to.

    Raises:
        CocoflowError: a bucket does not exist.
    """
    paths = {"run.root": config.run.root, "push.directory": config.push.directory}
    for key, path in paths.items():
        with contextlib.suppress(DataError):  # the containers may have credentials that this machine lacks
            if path is None or not is_bucket_missing(path):
                continue
            bucket, vertex = split(path)[0], config.run.vertex
            place = "" if vertex.project is None else f" --project={vertex.project} --location={vertex.region}"
            raise CocoflowError(
                f"{key} = {path}: there is no bucket {bucket}. Create it with `gcloud storage buckets create "
                f"gs://{bucket}{place}`, or name another one."
            )
