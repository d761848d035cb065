import pytest

from schemas.config.config import PushConfig
from schemas.config.config_io import load_config
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("assignments", "images"),
    [
        ([], 8),
        (["push.warmup_requests=20"], 20),
        (["push.validation.images=0"], 2),
        (["push.validation.images=0", "push.warmup_requests=0"], 0),
    ],
)
def test_the_evaluator_keeps_as_many_images_as_the_push_needs(assignments: list[str], images: int) -> None:
    assert load_config(None, assignments).push.sample_images == images


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["push.validation.images=0", "push.validation.tolerance=0.1"], "tolerance = 0.1 does nothing while images"),
        (["push.validation.images=0", "push.validation.timeout=9"], "timeout = 9.0 does nothing while images = 0"),
        (["push.keep_versions=0"], "push.keep_versions"),
        (["push.validation.tolerance=0"], "push.validation.tolerance"),
        (["push.warmup_requests=1001"], "push.warmup_requests"),  # TF Serving documents at most 1000
    ],
)
def test_values_without_a_meaning_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, assignments)


def test_all_versions_are_kept_by_default() -> None:
    assert PushConfig().keep_versions is None
