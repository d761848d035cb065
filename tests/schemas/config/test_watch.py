"""The section `watch`: cron expressions, time zones, and keys without effect."""

import pytest

from schemas.config.config_io import from_yaml, load_config, to_yaml
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["watch.cron='0 3 * *'"], r"watch\.cron.*has 4 fields; a cron expression has five, minute, hour"),
        (["watch.cron='@daily'"], r"watch\.cron.*has 1 fields; a cron expression has five"),
        (["watch.cron='0 25 * * *'"], r"watch\.cron.*not a cron expression: Bad hour; its fields are minute"),
        (["watch.cron='0 0 31 2 *'"], r"watch\.cron.*not a cron expression: Bad day-of-month"),
        (["watch.cron='0 0 29 2 MON#6'"], r"watch\.cron.*not a cron expression: Bad day-of-week"),
        (["watch={cron: 0 3 * * *, time_zone: Mars/Base}"], r"watch\.time_zone.*is not a time zone; write one of the"),
        (["watch={cron: 0 3 * * *, time_zone: ../x}"], r"watch\.time_zone.*is not a time zone; write one of the"),
        (["watch={cron: 0 3 * * *, time_zone: Europe}"], r"watch\.time_zone.*is not a time zone; write one of the"),
        (["watch.poll_seconds=5"], r"watch: poll_seconds = 5\.0 does nothing without a trigger; set cron or new_span"),
        (["watch.drift.enabled=true"], r"watch: drift = .* does nothing without a trigger"),
        (["watch={new_span: true, time_zone: Europe/Berlin}"], r"time_zone = Europe/Berlin does nothing without cron"),
        (["watch={new_span: true, catch_up: false}"], r"catch_up = False does nothing without cron"),
        (["watch={new_span: true, max_failures: 1, retry_seconds: 5}"], r"does nothing while max_failures = 1"),
        (["watch={new_span: true, drift: {infinity_norm: 0.2}}"], r"does nothing while enabled = False"),
    ],
)
def test_what_cannot_be_meant_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, assignments)


@pytest.mark.parametrize("cron", ["0 3 * * *", "*/5 8-18 * * MON-FRI", "30 1 1,15 * *", "0 0 29 2 *", "0 4 L * *"])
def test_a_schedule_is_read_back(cron: str) -> None:
    config = load_config(None, [f"watch={{cron: '{cron}', time_zone: America/New_York, catch_up: false}}"])
    assert config.watch.enabled
    assert config.watch.cron == cron
    assert from_yaml(to_yaml(config)) == config


def test_without_triggers_it_is_off() -> None:
    assert not load_config(None, []).watch.enabled
    assert load_config(None, ["watch.new_span=true"]).watch.enabled
