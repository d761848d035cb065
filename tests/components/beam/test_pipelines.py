import pytest

from components.beam.pipelines import IN_MEMORY_RUNNER, chooses_workers, make_pipeline


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ([], False),
        (["--temp_location=x"], False),
        ([f"--runner={IN_MEMORY_RUNNER}"], False),
        (["--runner=Flink"], True),
        (["--direct_num_workers=3"], True),
    ],
)
def test_a_choice_of_the_user_counts(arguments: list[str], chosen: bool) -> None:
    assert chooses_workers(arguments) is chosen


@pytest.mark.parametrize(
    ("options", "runner"),
    [((), "FnApiRunner"), (("--direct_num_workers=2",), "FnApiRunner"), (("--runner=PrismRunner",), "PrismRunner")],
)
def test_pipelines_run_in_memory_unless_another_runner_is_named(options: tuple[str, ...], runner: str) -> None:
    assert type(make_pipeline(options).runner).__name__ == runner
