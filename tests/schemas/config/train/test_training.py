import pytest

from schemas.config.config_io import load_config
from schemas.errors import ConfigError


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker"])
def test_a_tpu_and_another_strategy_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigError, match=f"tpu = 'local' and strategy = {strategy} are exclusive"):
        load_config(None, ["train.tpu=local", f"train.strategy={strategy}"])


@pytest.mark.parametrize("strategy", ["auto", "tpu"])
def test_a_tpu_fits_its_strategy(strategy: str) -> None:
    assert load_config(None, ["train.tpu=grpc://10.0.0.2:8470", f"train.strategy={strategy}"]).train.tpu


def test_batch_norm_of_one_device_has_nothing_to_be_synchronised_with() -> None:
    with pytest.raises(ConfigError, match="sync_batch_norm = false requires several replicas"):
        load_config(None, ["train.sync_batch_norm=false", "train.strategy=one_device"])


def test_a_threshold_needs_repeat_factors() -> None:
    assert load_config(None, ["train.sampling={name: repeat_factor, threshold: 0.01}"]).train.sampling.threshold == 0.01
    with pytest.raises(ConfigError, match=r"train\.sampling: threshold = 0\.01 does nothing with name = uniform"):
        load_config(None, ["train.sampling.threshold=0.01"])


@pytest.mark.parametrize("weights", ["inverse", "{car: -1}", "3"])
def test_class_weights_are_a_rule_or_numbers_by_name(weights: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.class_weights"):
        load_config(None, [f"train.class_weights={weights}"])
