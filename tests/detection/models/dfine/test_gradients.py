"""A whole training pass of D-FINE against its authors' code: loss terms, and gradients through every part."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dfine import model
from detection.models.dfine.config import DFINES
from detection.models.dfine.model import DFine
from detection.types import Labels
from tests.detection.models.dfine import original
from tests.detection.models.dfine.test_criterion import original_name
from tests.detection.models.dfine.test_denoising import draws_of, objects_of

CLASSES = 80
MOST = 9
KINKS = ("stem_1", "stage_1_block_1")  # where the authors' own float32 and float64 differ as much


def build(case: dict[str, Any], *, activation: str = "relu", class_loss: str = "mal") -> DFine:
    name = {"variables_n80.json": "dfine-n", "variables_s80.json": "dfine-s"}[case["weights"]]
    config = DFINES[name].changed(
        {
            "image_size": (case["height"], case["width"]),
            "encoder": {"transposed_positions": True},
            "decoder": {"activation": activation},
            "loss": {"class_loss": class_loss},
        }
    )
    return DFine(config=config, num_classes=CLASSES, name=name)


def load(detector: DFine, folder: Path, file: str) -> None:
    """Sets the oracle's weights."""
    values = original.weights(folder, file)
    embedding = values.pop("class_embedding")[:CLASSES]  # the last row, of no object, is zero
    values["class_embedding/embedding"] = embedding.T
    assert values.keys() == {variable.path for variable in detector.variables}
    for variable in detector.variables:
        variable.assign(values[variable.path])


def labels_of(arrays: dict[str, np.ndarray], image_size: tuple[int, int]) -> Labels:
    """The objects as `Labels`, with a slot of padding before them."""
    boxes, classes, valid = (np.asarray(part) for part in objects_of(arrays, MOST - 1))
    height, width = image_size
    centers, sides = boxes[..., 1::-1], boxes[..., :1:-1]
    corners = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1) * [height, width, height, width]
    padded = [np.concatenate([np.zeros_like(part[:, :1]), part], axis=1) for part in (corners, classes, valid)]
    return Labels(tf.constant(padded[0], tf.float32), *map(tf.constant, padded[1:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("n256_train", "mal"),
        ("s256_silu_train", "vfl"),
        *(
            pytest.param(*case, marks=pytest.mark.extended)
            for case in (
                ("n256_train", "vfl"),
                ("s256_silu_train", "mal"),
                *(("n192x320_train", kind) for kind in ("mal", "vfl")),
            )
        ),
    ],
)
def test_terms_and_gradients_equal_the_originals(
    name: str, kind: Literal["mal", "vfl"], oracle_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = oracle_dir / "dfine"
    case, arrays, images = original.read_case(folder, name)
    detector = build(case, activation="swish" if "silu" in name else "relu", class_loss=kind)
    load(detector, folder, case["weights"])
    monkeypatch.setattr(model, "draw", lambda *_, slots, **__: draws_of(arrays, slots))
    paths = {variable.path: variable.value for variable in detector.trainable_variables}
    labels = labels_of(arrays, detector.image_size)
    with tf.GradientTape() as tape:
        # Batch norm has its moving statistics, and the decoder all outputs.
        outputs = detector(tf.constant(images))._replace(last=None, seed=tf.zeros([2], tf.int32))
        found = detector.losses(outputs, labels, training=True)
        total = tf.add_n(list(found.values()))
    last = detector.config.decoder.layers - 1
    theirs = dict(zip(map(str, arrays[f"{kind}/loss_names"]), map(float, arrays[f"{kind}/loss_values"]), strict=True))
    named = {original_name(term, kind, last): float(value) for term, value in found.items()}
    assert {key: value for key, value in named.items() if value} == pytest.approx(
        {key: value for key, value in theirs.items() if value}, rel=1e-4, abs=1e-7
    )
    gradients = dict(zip(paths, tape.gradient(total, list(paths.values())), strict=True))
    norms = dict(zip(map(str, arrays[f"{kind}/grad_names"]), map(float, arrays[f"{kind}/grad_norms"]), strict=True))
    assert len(norms) > 20
    for theirs_name, norm in norms.items():
        ours = original.paths_of(theirs_name, folder, case["weights"])
        ours = ["class_embedding/embedding"] if ours == ["class_embedding"] else ours
        flat = np.concatenate([np.ravel(gradients[path]) for path in ours])
        bound = 3e-3 if any(kink in ours[0] for kink in KINKS) else 1e-3
        assert np.linalg.norm(flat) == pytest.approx(norm, rel=bound), theirs_name
