from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.efficientnet import Block, EfficientNet, survival_probability
from detection.models.backbones.efficientnet_spec import BACKBONES, EfficientNetSpec, Stage, block_specs, round_filters

Oracles = dict[str, dict[str, Any]]


def test_filters_round_to_eights(oracles: Oracles) -> None:
    oracle = oracles["efficientnet.round_filters"]
    assert [round_filters(*case) for case in oracle["inputs"]["cases"]] == oracle["expected"]


def test_blocks_and_channels_of_all_sizes(oracles: Oracles) -> None:
    checked = 0
    for name, oracle in oracles.items():
        if name.startswith("effdet.params.") and "backbone_blocks" in oracle["expected"]:
            model = oracle["inputs"]["model"]
            spec = BACKBONES[_backbone_of(model)]
            blocks = block_specs(spec)
            last = [block.out_filters for block, after in pairwise(blocks) if after.stride == 2]
            assert len(blocks) == oracle["expected"]["backbone_blocks"]
            assert [*last[2:], blocks[-1].out_filters] == oracle["expected"]["p3_p4_p5_channels"]
            checked += 1
    assert checked == 15


def _backbone_of(model: str) -> str:
    number = model.removeprefix("efficientdet-")
    return {"d7": "efficientnet-b6", "d7x": "efficientnet-b7", "lite3x": "efficientnet-lite3"}.get(
        number, f"efficientnet-{number.replace('d', 'b')}"
    )


@pytest.mark.parametrize(
    ("name", "last", "published"), [("a1", 320, 3_887_038), ("b1", 320, 4_383_312), ("small", 144, 2_030_264)]
)
def test_mnasnets_have_as_many_parameters_as_published(name: str, last: int, published: int) -> None:
    """Counts of timm's semnasnet_100, mnasnet_100 and mnasnet_small, with 1280 features and 1000 classes on top."""
    backbone = EfficientNet(spec=BACKBONES[f"mnasnet-{name}"], name=name)
    backbone.build((None, None, None, 3))
    parameters = sum(int(np.prod(variable.shape)) for variable in backbone.trainable_variables)
    assert parameters == published - (last * 1280 + 2 * 1280) - (1280 * 1000 + 1000)
    assert backbone.level_filters[-1] == last
    assert len(backbone.level_filters) == 5


def test_only_blocks_that_keep_the_shape_add_their_input() -> None:
    specs = block_specs(BACKBONES["mnasnet-small"])
    assert [spec.adds for spec in specs] == [False] + [True] * 14
    adding, other = (
        Block(
            spec=specs[0]._replace(adds=adds),
            index=0,
            survival=None,
            activation="relu",
            batch_norm={},
            name="block",
            dtype="float32",
        )
        for adds in (True, False)
    )
    inputs = tf.random.stateless_normal([1, 4, 4, 8], [0, 0])
    for block in (adding, other):
        block.build((None, None, None, 8))
    adding.set_weights(other.get_weights())
    np.testing.assert_allclose(adding(inputs) - inputs, other(inputs), atol=1e-6)


def test_levels_halve_rounding_up() -> None:
    backbone = EfficientNet(spec=BACKBONES["efficientnet-nano"], name="efficientnet-nano")
    backbone.build((None, None, None, 3))
    levels = backbone(tf.zeros([1, 50, 33, 3]))
    assert [level.shape.as_list()[1:3] for level in levels] == [[25, 17], [13, 9], [7, 5], [4, 3], [2, 2]]
    assert [level.shape[3] for level in levels] == backbone.level_filters


def test_drop_connect_needs_training_and_a_seed() -> None:
    spec = EfficientNetSpec(1.0, 1.0, stem_filters=8, stages=(Stage(4, 3, 1, 1, 8),))
    backbone = EfficientNet(spec=spec, survival=0.3, name="tiny")
    backbone.build((None, None, None, 3))
    images = tf.random.stateless_normal([4, 8, 8, 3], [0, 0])

    def features(*, training: bool, seed: list[int] | None) -> np.ndarray:
        tensor = None if seed is None else tf.constant(seed)
        return backbone(images, training=training, seed=tensor)[-1].numpy()

    np.testing.assert_array_equal(features(training=False, seed=[1, 1]), features(training=False, seed=None))
    one, other = features(training=True, seed=[1, 1]), features(training=True, seed=[1, 2])
    assert (one != other).any()
    np.testing.assert_array_equal(one, features(training=True, seed=[1, 1]))
    np.testing.assert_array_equal(features(training=True, seed=None), features(training=True, seed=None))


def test_survival_falls_linearly(oracles: Oracles) -> None:
    oracle = oracles["efficientnet.survival"]
    count = oracle["inputs"]["N"]
    result = [survival_probability(0.8, index, count) for index in oracle["inputs"]["i"]]
    np.testing.assert_allclose(result, oracle["expected"], atol=1e-6)
