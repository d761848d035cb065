"""Options of Apache Beam: spelling, and refusal of options that lose data, have no effect or are contradictory."""

import argparse
import re
from typing import Annotated, NoReturn

from pydantic import AfterValidator

_TIMED_BUFFER = "Beam's timed buffer loses elements without an error"
# Pattern of options as --name=value -> reason for the refusal, and remedy.
_REFUSED = {
    r"--runner=(apache_beam\.runners\.dask\.\S+|DaskRunner)(?!\S)": "this runner of Beam loses what finish_bundle "
    "emits, and all but one result of a pipeline, without an error; --runner=dask runs Beam's own workers on Dask",
    r"--runner=(ray_beam\.\S+|RayRunner)(?!\S)": "this runner runs nothing and reports success; remove it, or use "
    "--runner=dask",
    r"--runner=(beam_pyspark_runner\.\S+|PySparkRunner)(?!\S)": "this runner cannot run beam.Reshuffle, which all "
    "our pipelines use; remove it, or use --runner=dask",
    r"--direct_ru\S*[= ]multi_threading(?!\S)": f"{_TIMED_BUFFER}; use multi_processing",
    r"\S*data_buffer_time_limit_ms=0*[1-9]\d*": f"{_TIMED_BUFFER}; remove it",
    r"--no_wait_until_finish(?!\S)": "the results of a pipeline are read when it ends; remove it",
}
# Beam accepts these silently: it would run the pipeline on this machine, or ignore them.
_BESIDE_DASK = {r"--direct_\S+": "with --runner=dask, Beam's workers are on Dask's workers, one on each; remove it"}
_WITHOUT_DASK = {r"--dask_\S+": "the option of another runner; write --runner=dask, too, or remove it"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _beam_args(beam_args: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses options that lose data or contradict the runner, and writes the runner as --runner=NAME."""
    parser = _Parser(add_help=False)
    parser.add_argument("--runner")
    chosen, others = parser.parse_known_args(beam_args)
    name = chosen.runner
    named = [] if name is None else [f"--runner={'dask' if name.lower() == 'dask' else name}"]
    others_refused = _BESIDE_DASK if name is not None and "dask" in name.lower() else _WITHOUT_DASK
    for pattern, reason in (_REFUSED | others_refused).items():
        match = re.search(pattern, " ".join(named + others), re.IGNORECASE)
        if match:
            raise ValueError(f"{match[0]}: {reason}")
    return (*named, *others)


BeamArgs = Annotated[tuple[str, ...], AfterValidator(_beam_args)]
