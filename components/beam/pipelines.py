"""Beam pipelines by `run.beam_args`: their runner and their options."""

from collections.abc import Sequence

import apache_beam as beam

# The default of newer Beam versions, Prism, is a program that Beam downloads.  Every version knows this name.
IN_MEMORY_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_RUNNER = "--runner="
_DASK_RUNNER = "components.beam.dask_runner.DaskRunner"


def beam_arguments(beam_args: Sequence[str]) -> list[str]:
    """Returns `run.beam_args` as Beam takes them: `--runner=dask` by the name of its class."""
    if f"{_RUNNER}dask" not in beam_args:
        return list(beam_args)
    named = [f"{_RUNNER}{_DASK_RUNNER}" if one == f"{_RUNNER}dask" else one for one in beam_args]
    # The workers have TFX.  Without an image, TFX would package itself for them at each component.
    return [*named, "--sdk_container_image=unused"]


def make_pipeline(beam_args: Sequence[str], local_options: Sequence[str] = ()) -> beam.Pipeline:
    """Makes a pipeline, in memory unless `run.beam_args` choose another runner.

    Args:
        beam_args: `run.beam_args`.
        local_options: options of workers on this machine, unless `beam_args` choose workers.
    """
    given = beam_arguments(beam_args)
    return beam.Pipeline(
        argv=[f"{_RUNNER}{IN_MEMORY_RUNNER}", *given, *([] if chooses_workers(given) else local_options)]
    )


def chooses_workers(beam_args: Sequence[str]) -> bool:
    """Returns whether Beam arguments choose workers: by name, or with a runner other than the one in memory."""
    chosen = (argument for argument in beam_args if argument != f"{_RUNNER}{IN_MEMORY_RUNNER}")
    return any(argument.startswith((_RUNNER, "--direct_")) for argument in chosen)
