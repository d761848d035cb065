import pytest

from schemas.config.config_io import load_config
from schemas.errors import ConfigError


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "multi_worker"])
def test_a_tpu_and_another_strategy_are_refused(strategy: str) -> None:
    with pytest.raises(ConfigError, match=f"tpu = 'local' and strategy = {strategy} exclude each other"):
        load_config(None, ["train.tpu=local", f"train.strategy={strategy}"])


@pytest.mark.parametrize("strategy", ["auto", "tpu"])
def test_a_tpu_fits_its_strategy(strategy: str) -> None:
    assert load_config(None, ["train.tpu=grpc://10.0.0.2:8470", f"train.strategy={strategy}"]).train.tpu


def test_batch_norm_of_one_device_has_nothing_to_be_synchronised_with() -> None:
    with pytest.raises(ConfigError, match="sync_batch_norm = false needs several replicas"):
        load_config(None, ["train.sync_batch_norm=false", "train.strategy=one_device"])
