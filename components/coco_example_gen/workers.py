"""How the work spreads over the cores of one machine.

Threads start at once, but share Python's lock; processes do not, and each takes some
fifteen seconds to import what it needs.
"""

import os
from collections.abc import Callable, Sequence

import apache_beam as beam

# From local Beam options, which a runner that was chosen makes no use of, to a pipeline.
MakePipeline = Callable[[Sequence[str]], beam.Pipeline]

# Images, for each core beyond the first, from which on processes are done earlier than threads.
_PROCESSES_PAY = 30_000


def local_options(images: int) -> list[str]:
    """Beam options for reading some number of images on this machine; none: threads do it."""
    cores = os.cpu_count() or 1
    if images * (cores - 1) < _PROCESSES_PAY:
        return []
    return ["--direct_running_mode=multi_processing", f"--direct_num_workers={cores}"]


def make_local_pipeline(options: Sequence[str]) -> beam.Pipeline:
    """A pipeline on this machine."""
    return beam.Pipeline(argv=list(options))


def chooses_workers(beam_args: Sequence[str]) -> bool:
    """Whether Beam arguments say already where and how the work runs."""
    return any(argument.startswith(("--runner", "--direct_")) for argument in beam_args)
