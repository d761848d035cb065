"""D-FINE's matches and loss terms against the numbers of its authors' code, and of DEIM's."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dfine.criterion import (
    Distributions,
    Predictions,
    Terms,
    denoising_terms,
    match_all,
    matched_terms,
    weighted,
)
from detection.models.dfine.decoder import DecoderOutputs
from detection.models.dfine.losses import distillation_weights, encode_distances, query_counts, targets_of
from detection.models.dfine.matching import Objects, union_of

SLOTS = 7  # of objects; more than any image has
WEIGHTS = {"class_loss": 1.0, "box_loss": 5.0, "giou_loss": 2.0, "fgl_loss": 0.15, "ddf_loss": 1.5}
DISTRIBUTIONS = Distributions(up=0.5, scale=4.0)
# Names of the originals' terms.
KINDS = {"box_loss": "loss_bbox", "giou_loss": "loss_giou", "fgl_loss": "loss_fgl", "ddf_loss": "loss_ddf"}


class Case(NamedTuple):
    arrays: dict[str, np.ndarray]
    objects: Objects
    predictions: Predictions
    encoder: DecoderOutputs


@pytest.fixture(params=["criterion_small", "criterion_no_objects"])
def case(request: pytest.FixtureRequest, oracle_dir: Path) -> Case:
    with np.load(oracle_dir / "dfine" / f"{request.param}.npz") as file:
        arrays = dict(file)
    images = len(arrays["target_counts"])
    boxes, classes = np.zeros((images, SLOTS, 4), np.float32), np.zeros((images, SLOTS), np.int32)
    for image, count in enumerate(arrays["target_counts"]):
        boxes[image, :count] = arrays[f"target_boxes_{image}"]
        classes[image, :count] = arrays[f"target_labels_{image}"]
    valid = np.arange(SLOTS) < arrays["target_counts"][:, np.newaxis]
    encoder = DecoderOutputs(tf.constant(arrays["encoder_logits"]), tf.constant(arrays["encoder_boxes"]), None)
    objects = Objects(tf.constant(boxes), tf.constant(classes), tf.constant(valid))
    return Case(arrays, objects, _predictions(arrays), encoder)


def _predictions(arrays: dict[str, np.ndarray], prefix: str = "") -> Predictions:
    logits, boxes, corners = (tf.constant(arrays[f"{prefix}{name}"]) for name in ("logits", "boxes", "corners"))
    corners = tf.reshape(corners, [*corners.shape[:3], 4, 33])
    layers = [
        DecoderOutputs(*one) for one in zip(*(tf.unstack(part) for part in (logits, boxes, corners)), strict=True)
    ]
    of_initial, boxes = (tf.constant(arrays[f"{prefix}initial_{name}"]) for name in ("logits", "boxes"))
    return Predictions(DecoderOutputs(of_initial, boxes, None), layers)


def _triples(object_of: tf.Tensor) -> list[tuple[int, ...]]:
    images, queries = np.nonzero(np.asarray(object_of) >= 0)
    return sorted(zip(images.tolist(), queries.tolist(), np.asarray(object_of)[images, queries].tolist(), strict=True))


def test_matches_equal_the_originals(case: Case) -> None:
    matches = match_all(case.predictions, case.encoder, case.objects)
    for found, name in zip(tf.unstack(matches), ("aux_0", "aux_1", "last", "initial", "encoder"), strict=True):
        assert _triples(found) == sorted(map(tuple, case.arrays[f"match/{name}"].tolist())), name
    union = union_of(matches, num_objects=SLOTS)
    assert _triples(union) == sorted(map(tuple, case.arrays["match/union"].tolist()))


def _terms(case: Case, kind: Literal["mal", "vfl"]) -> Terms:
    matches = match_all(case.predictions, case.encoder, case.objects)
    union = targets_of(case.objects, union_of(matches, num_objects=SLOTS))
    count = max(int(case.arrays["target_counts"].sum()), 1)
    matching = query_counts(union)
    terms = matched_terms(
        case.predictions,
        case.encoder,
        case.objects,
        DISTRIBUTIONS,
        matches=matches,
        union=union,
        count=tf.constant(float(count)),
        union_count=tf.maximum(matching[0], 1.0),
        ddf=distillation_weights(matching, matching),
        kind=kind,
    )
    if "dn/logits" not in case.arrays:
        return terms
    groups, most = int(case.arrays["dn/groups"]), int(case.arrays["target_counts"].max())
    slots = np.arange(case.arrays["dn/logits"].shape[2])
    is_positive = slots % (2 * most) < most
    exists = slots % most < case.arrays["target_counts"][:, np.newaxis]
    known = targets_of(case.objects, tf.constant(np.where(is_positive & exists, slots % most, -1), tf.int32))
    return terms | denoising_terms(
        _predictions(case.arrays, "dn/"),
        known,
        DISTRIBUTIONS,
        count=tf.constant(float(count * groups)),
        ddf=distillation_weights(query_counts(known), matching),
        kind=kind,
    )


def original_name(name: str, kind: str, last: int) -> str:
    denoises, name = name.startswith("denoising_"), name.removeprefix("denoising_")
    term, _, place = name.partition("_loss")
    own = {"class": f"loss_{kind}"}.get(term) or KINDS[f"{term}_loss"]
    if denoises:
        return own + {"": f"_dn_{last}", "_initial": "_dn_pre"}.get(place, f"_dn{place}")
    return own + {"": "", "_initial": "_pre", "_encoder": "_enc_0"}.get(place, f"_aux{place}")


@pytest.mark.parametrize("kind", ["mal", "vfl"])
def test_loss_terms_equal_the_originals(case: Case, kind: Literal["mal", "vfl"]) -> None:
    found = weighted(_terms(case, kind), WEIGHTS)
    values = zip(case.arrays[f"{kind}/loss_names"], case.arrays[f"{kind}/loss_values"], strict=True)
    expected = {str(name): float(value) for name, value in values if value}
    last = len(case.predictions.layers) - 1
    named = {original_name(name, kind, last): float(term) for name, term in found.items()}
    assert {name: term for name, term in named.items() if term} == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert sum(named.values()) == pytest.approx(float(case.arrays[f"{kind}/loss_total"]), rel=1e-5)


@pytest.mark.parametrize("kind", ["mal", "vfl"])
def test_gradients_equal_the_originals(case: Case, kind: Literal["mal", "vfl"]) -> None:
    """Those of the logits, whose losses depend on nothing that a decoder derives from them."""
    logits = [layer.logits for layer in case.predictions.layers]
    with tf.GradientTape() as tape:
        tape.watch(logits)
        total = tf.add_n(list(weighted(_terms(case, kind), WEIGHTS).values()))
    for number, gradient in enumerate(tape.gradient(total, logits)):
        expected = case.arrays.get(f"{kind}/grad_norm/logits_{number}")
        assert expected is not None
        assert float(tf.norm(gradient)) == pytest.approx(float(expected), rel=1e-3)


def test_distances_are_coded_as_in_the_original(oracle_dir: Path) -> None:
    with np.load(oracle_dir / "dfine" / "criterion_small.npz") as arrays:
        distances, bins, right = (arrays[f"code/{name}"] for name in ("distance", "left_bin", "weight_right"))
    lower, share = encode_distances(tf.constant(distances), bins=33, up=0.5, scale=4.0)
    np.testing.assert_array_equal(lower, np.floor(bins))  # there, the last bin is written as 31.9
    np.testing.assert_allclose(share, right, atol=1e-5)


def test_what_is_not_a_number_counts_as_zero() -> None:
    terms = weighted({"box_loss_1": tf.constant(np.nan), "denoising_giou_loss": tf.constant(2.0)}, WEIGHTS)
    assert {name: float(term) for name, term in terms.items()} == {"box_loss_1": 0.0, "denoising_giou_loss": 4.0}
