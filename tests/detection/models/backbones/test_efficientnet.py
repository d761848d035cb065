from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from detection.models.backbones.efficientnet import EfficientNet, drop_connect, survival_probability
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


Oracles = dict[str, dict[str, Any]]


def _kept(seed: list[int], index: int = 3) -> np.ndarray:
    return drop_connect(tf.ones([200, 2, 1, 3]), survival=0.8, seed=tf.constant(seed), index=index).numpy()


def test_survival_falls_linearly(oracles: Oracles) -> None:
    oracle = oracles["efficientnet.survival"]
    count = oracle["inputs"]["N"]
    result = [survival_probability(0.8, index, count) for index in oracle["inputs"]["i"]]
    np.testing.assert_allclose(result, oracle["expected"], atol=1e-6)


def test_whole_examples_are_dropped_and_the_rest_scaled() -> None:
    outputs = _kept([1, 2])
    assert set(np.unique(outputs)) == {np.float32(0.0), np.float32(1.25)}
    assert (outputs == outputs[:, :1, :1, :1]).all()
    assert 0.7 < (outputs[:, 0, 0, 0] > 0).mean() < 0.9


def test_seed_and_block_decide_alone() -> None:
    np.testing.assert_array_equal(_kept([1, 2]), _kept([1, 2]))
    assert (_kept([1, 2]) != _kept([1, 3])).any()
    assert (_kept([1, 2]) != _kept([1, 2], index=4)).any()


def test_xla_drops_the_same_examples() -> None:
    def drop(seed: tf.Tensor) -> tf.Tensor:
        return drop_connect(tf.ones([50, 1]), survival=0.5, seed=seed, index=0)

    for seed in ([1, 2], [-5, 3], [2**31 - 1, -7]):
        compiled = tf.function(drop, jit_compile=True)
        np.testing.assert_array_equal(compiled(tf.constant(seed)), drop(tf.constant(seed)))


def test_a_survival_of_one_keeps_everything() -> None:
    outputs = drop_connect(tf.ones([500, 1]), survival=1.0, seed=tf.constant([3, 4]), index=0)
    np.testing.assert_array_equal(outputs, 1.0)


def test_two_replicas_together_drop_what_one_drops(two_replicas: tf.distribute.Strategy) -> None:
    def drop(count: int) -> tf.Tensor:
        return drop_connect(tf.ones([count, 2, 3]), survival=0.5, seed=tf.constant([1, 2]), index=4)

    halves = two_replicas.experimental_local_results(tf.function(lambda: two_replicas.run(drop, (100,)))())
    np.testing.assert_array_equal(np.concatenate(halves), drop(200))
    assert (halves[0].numpy() != halves[1].numpy()).any()
