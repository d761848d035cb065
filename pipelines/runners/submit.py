"""Compiles the pipeline and submits it, once or on a schedule, with the client of its target."""

import difflib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from detection.storage.gcs.objects import is_bucket_missing
from detection.storage.paths import split
from pipelines.console import quiet_run
from pipelines.runners.compiled import Target, compile_pipeline, require_compilable
from pipelines.runners.schedules import Recurring
from schemas.config.config import Config
from schemas.config.runtime_parameters import RUNTIME_PARAMETERS, with_parameters
from schemas.errors import CocoflowError, ConfigError, DataError
from schemas.quoting import quoted

if TYPE_CHECKING:
    from pipelines.runners.kubeflow import Kubeflow
    from pipelines.runners.vertex import Vertex

_NAME_LENGTH = 128


def connect(config: Config, target: Target) -> "Vertex | Kubeflow":
    """Connects with the service that `config.run` names.

    Raises:
        CocoflowError: no credentials, or no such service.
    """
    if target == "vertex":
        from pipelines.runners.vertex import Vertex

        return Vertex(config)
    from pipelines.runners.kubeflow import Kubeflow

    return Kubeflow(config)


def submit(
    config: Config,
    target: Target,
    assignments: Sequence[str] = (),
    *,
    record: Callable[[str], None],
    wait: bool = False,
    verbose: bool = False,
) -> tuple[str, str]:
    """Compiles the pipeline and submits it.

    Args:
        config: whole configuration; its paths are those of the containers.
        target: where the pipeline runs.
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
        service = _ready(config, target)
        run = service.submit(compile_pipeline(config, target), parameters)
        record(run)
        if wait:
            terminal.print(f"submitted {run}; waiting for its end", highlight=False, markup=False, soft_wrap=True)
            service.wait(run)
        return run, service.address(run)


def create_schedule(
    config: Config,
    target: Target,
    assignments: Sequence[str] = (),
    *,
    name: str | None = None,
    replace: bool = False,
    verbose: bool = False,
) -> Recurring:
    """Compiles the pipeline and creates a schedule of its runs.

    Args:
        config: whole configuration, with `run.schedule.cron`.
        target: where the pipeline runs.
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
    if target == "kubeflow":
        from pipelines.runners.kubeflow import require_supported

        require_supported(schedule)
    parameters = parameters_of(config, assignments)
    with quiet_run(None, verbose=verbose):
        service = _ready(config, target)
        compiled = compile_pipeline(config, target)
        return service.create_schedule(name, compiled, parameters, schedule, replace=replace)


def parameters_of(config: Config, assignments: Sequence[str]) -> dict[str, str | int]:
    """Reads values of parameters, and validates them as the components will.

    Args:
        config: whole configuration.
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
        values[name] = _typed(name, text)
    with_parameters(config, values)
    return values


def _typed(name: str, text: str) -> str | int:
    if RUNTIME_PARAMETERS[name].kind is not int:
        return text
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--parameter {name}={quoted(text)}: a whole number is needed.") from None


def _ready(config: Config, target: Target) -> "Vertex | Kubeflow":
    """Checks what the run needs, and connects, before the pipeline is compiled for 20 seconds."""
    require_compilable(config, target)
    service = connect(config, target)
    _require_buckets(config, target)
    return service


def _require_buckets(config: Config, target: Target) -> None:
    """Requires the buckets that the run writes to.

    Raises:
        CocoflowError: a bucket does not exist.
    """
    paths = {"run.root": config.run.root, "push.directory": config.push.directory}
    for key, path in paths.items():
        if path is None:
            continue
        try:
            missing = is_bucket_missing(path)
        except DataError:
            if target == "vertex":
                raise
            continue  # Kubeflow's containers may have credentials that this machine lacks
        if missing:
            bucket = split(path)[0]
            raise CocoflowError(
                f"{key} = {path}: there is no bucket {bucket}. Create it with `gcloud storage buckets create "
                f"gs://{bucket}{_bucket_flags(config, target)}`, or name another one."
            )


def _bucket_flags(config: Config, target: Target) -> str:
    vertex = config.run.vertex
    if target != "vertex":
        return ""
    project = "" if vertex.project is None else f" --project={vertex.project}"
    return f"{project} --location={vertex.region}"
