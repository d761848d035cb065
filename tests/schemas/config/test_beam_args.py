import json

import pytest

from schemas.config.config_io import load_config
from schemas.errors import ConfigError


def beam_args(*options: str) -> tuple[str, ...]:
    return load_config(None, [f"run.beam_args={json.dumps(options)}"]).run.beam_args


@pytest.mark.parametrize(
    "options", [["--runner=dask", "--a=b"], ["--runner", "dask", "--a=b"], ["--a=b", "--runner=Dask"]]
)
def test_the_runner_has_one_spelling(options: list[str]) -> None:
    assert beam_args(*options) == ("--runner=dask", "--a=b")
    assert beam_args(*beam_args(*options)) == beam_args(*options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--runner=DaskRunner"], "--runner=DaskRunner: .* loses .*; --runner=dask runs"),
        (["--runner", "daskrunner", "--dask_client_address=tcp://h:1"], "loses what finish_bundle emits"),
        (["--runner=apache_beam.runners.dask.dask_runner.DaskRunner"], "loses what finish_bundle emits"),
        (["--runner=ray_beam.runner.RayRunner"], "runs nothing and reports success"),
        (["--runner=beam_pyspark_runner.pyspark_runner.PySparkRunner"], "cannot run beam.Reshuffle"),
        (["--direct_running_mode=multi_threading"], "timed buffer loses elements .*; use multi_processing"),
        (["--direct_num_workers=2", "--direct_running_mode", "multi_threading"], "timed buffer loses"),
        (["--experiments=x", "--experiments=data_buffer_time_limit_ms=100"], "timed buffer loses"),
        (["--experiment", "data_buffer_time_limit_ms=1"], "timed buffer loses"),
        (["--no_wait_until_finish"], "read when it ends"),
        (["--runner"], "expected one argument"),
        (["--runner=dask", "--direct_running_mode=multi_processing"], "--direct_running_mode=multi_processing: with"),
        (["--direct_num_workers", "2", "--runner", "Dask"], "--direct_num_workers: with --runner=dask, Beam's workers"),
        (["--dask_client_address=tcp://h:1"], "--dask_client_address=tcp://h:1: the option of another runner"),
        (["--runner=FlinkRunner", "--dask_driver_host=h"], "write --runner=dask, too"),
    ],
)
def test_options_that_lose_data_or_contradict_the_runner_are_refused(options: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"run.beam_args: .*{reason}"):
        beam_args(*options)


@pytest.mark.parametrize(
    "options",
    [
        ["--runner=FlinkRunner", "--flink_master=h:1"],
        ["--runner=components.beam.dask_runner.DaskRunner"],
        ["--direct_running_mode=multi_processing", "--temp_location=gs://b/multi_threading"],
        ["--experiments=data_buffer_time_limit_ms=0"],
    ],
)
def test_other_options_stay(options: list[str]) -> None:
    assert beam_args(*options) == tuple(options)
