"""References of container images that runtimes accept, and others."""

import pytest

from schemas.config.config_io import load_config
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    "reference",
    [
        *("cocoflow", "REGISTRY/cocoflow:1", "cocoflow:1", "localhost:5000/a/b:1.2_x", "gcr.io/p/cocoflow"),
        f"gcr.io/p/a@sha256:{'0' * 64}",
        "europe-docker.pkg.dev/project/repository/cocoflow:v1",
    ],
)
def test_good_ones_pass(reference: str) -> None:
    assert load_config(None, [f"run.image={reference}"]).run.image == reference


@pytest.mark.parametrize(
    "reference",
    [
        *("https://gcr.io/project/cocoflow:1", "gcr.io/my project/a", "gcr.io/My_Project/cocoflow:1", "gcr.io/p/a :1"),
        *("gcr.io/p/cocoflow:a:b", "${IMAGE}", "Cocoflow", "a//b", "a/", "gcr.io/p/a@sha256:12"),
    ],
)
@pytest.mark.parametrize("key", ["run.image", "push.vertex.image"])
def test_others_are_refused_by_key(reference: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}.*is no image reference"):
        load_config(None, [f"{key}='{reference}'", "push.vertex.model_registry=true"])
