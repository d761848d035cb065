from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.efficientnet import Block, EfficientNet, survival_of
from detection.models.backbones.efficientnet_spec import (
    BACKBONES,
    EfficientNetSpec,
    Stage,
    block_specs,
    level_blocks,
    round_filters,
)

Oracles = dict[str, dict[str, Any]]

BATCH_NORM = {"momentum": 0.99, "epsilon": 1e-3}


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
    backbone = EfficientNet(batch_norm=BATCH_NORM, spec=BACKBONES[f"mnasnet-{name}"], name=name)
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
    backbone = EfficientNet(batch_norm=BATCH_NORM, spec=BACKBONES["efficientnet-nano"], name="efficientnet-nano")
    backbone.build((None, None, None, 3))
    levels = backbone(tf.zeros([1, 50, 33, 3]))
    assert [level.shape.as_list()[1:3] for level in levels] == [[25, 17], [13, 9], [7, 5], [4, 3], [2, 2]]
    assert [level.shape[3] for level in levels] == backbone.level_filters


# The Object Detection API takes stack_0/block_0, stack_1/block_1, stack_2/block_1, stack_4/block_2 and stack_6/block_0
# of every EfficientNet.  Blocks per stack: B0 1, 2, 2, 3, 3, 4, 1; B3 2, 3, 3, 5, 5, 6, 2; B7 4, 7, 7, 10, 10, 13, 4.
@pytest.mark.parametrize(
    ("name", "last", "od_api"),
    [
        ("b0", [0, 2, 4, 10, 15], [0, 2, 4, 10, 15]),
        ("b3", [1, 4, 7, 17, 25], [0, 3, 6, 15, 24]),
        ("b7", [3, 10, 17, 37, 54], [0, 5, 12, 30, 51]),
    ],
)
def test_the_blocks_of_the_levels(name: str, last: list[int], od_api: list[int]) -> None:
    spec = BACKBONES[f"efficientnet-{name}"]
    assert level_blocks(spec, "standard") == last
    assert level_blocks(spec, "od-api") == od_api


def test_the_layout_of_the_object_detection_api() -> None:
    """A level is an earlier block's output; the blocks in between stay, those after the last level go."""
    stages = (Stage(1, 3, 1, 1, 8), Stage(1, 3, 2, 1, 8), Stage(2, 3, 2, 1, 16))
    spec = EfficientNetSpec(1.0, 1.5, stem_filters=8, stages=stages)
    standard, other = (
        EfficientNet(batch_norm=BATCH_NORM, spec=spec, layout=layout, name="deep") for layout in ("standard", "od-api")
    )
    for backbone in (standard, other):
        backbone.build((None, None, None, 3))
    assert [len(backbone.blocks) for backbone in (standard, other)] == [7, 6]
    assert standard.level_filters == other.level_filters == [8, 8, 16]
    other.set_weights(standard.get_weights()[: len(other.get_weights())])
    images = tf.random.stateless_normal([2, 24, 32, 3], [0, 0])
    blocks = [standard.stem(images)]
    for block in standard.blocks:
        blocks.append(block(blocks[-1]))
    with tf.GradientTape() as tape:
        total = tf.add_n([tf.reduce_sum(level**2) for level in other(images)])
    trained = other.trainable_variables
    gradients = tape.gradient(total, [variable.value for variable in trained])
    assert all(gradient is not None for gradient in gradients), "all blocks train"
    for levels, wanted in ((standard(images), (2, 4, 7)), (other(images), (1, 3, 6))):
        for level, number in zip(levels, wanted, strict=True):
            np.testing.assert_array_equal(level, blocks[number])


def test_drop_connect_needs_training_and_a_seed() -> None:
    spec = EfficientNetSpec(1.0, 1.0, stem_filters=8, stages=(Stage(4, 3, 1, 1, 8),))
    backbone = EfficientNet(batch_norm=BATCH_NORM, spec=spec, survival_probability=0.3, name="tiny")
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
    result = [survival_of(index, count, last=0.8) for index in oracle["inputs"]["i"]]
    np.testing.assert_allclose(result, oracle["expected"], atol=1e-6)
