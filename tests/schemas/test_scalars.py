"""Tags of scalars."""

import pytest

from schemas.scalars import TOTAL_LOSS, loss_tags, training_tags

ONE_STAGE = {"class_loss": 0.5, "box_loss": 0.25, "l2_loss": 0.125, TOTAL_LOSS: 0.875}
TWO_STAGES = ("rpn_score_loss", "rpn_box_loss", "class_loss", "box_loss", "mask_loss", "l2_loss", TOTAL_LOSS)


@pytest.mark.parametrize(
    ("terms", "tags"),
    [
        # What the Object Detection API's `model_main_tf2.py` prints while it trains an SSD and a Mask R-CNN.
        (tuple(ONE_STAGE), "Loss/classification_loss Loss/localization_loss Loss/regularization_loss Loss/total_loss"),
        (
            TWO_STAGES,
            "Loss/RPNLoss/objectness_loss Loss/RPNLoss/localization_loss Loss/BoxClassifierLoss/classification_loss "
            "Loss/BoxClassifierLoss/localization_loss Loss/BoxClassifierLoss/mask_loss Loss/regularization_loss "
            "Loss/total_loss",
        ),
        # The names of the losses in its oracle.
        (("center_loss", "size_loss", "offset_loss"), "Loss/object_center Loss/box/scale Loss/box/offset"),
    ],
    ids=["one stage", "two stages", "centers"],
)
def test_loss_tags_are_those_of_the_object_detection_api(terms: tuple[str, ...], tags: str) -> None:
    assert list(loss_tags(terms).values()) == tags.split()


def test_other_terms_keep_their_names() -> None:
    assert loss_tags(["box_iou_loss", "keypoint_loss"]) == {
        "box_iou_loss": "Loss/box_iou_loss",
        "keypoint_loss": "Loss/keypoint_loss",
    }
    cascade = loss_tags([*TWO_STAGES, "class_loss_2", "box_loss_3"])
    assert cascade["class_loss_2"] == "Loss/BoxClassifierLoss/classification_loss_2"
    assert cascade["box_loss_3"] == "Loss/BoxClassifierLoss/localization_loss_3"


def test_scalars_of_training_that_are_no_losses() -> None:
    others = ("learning_rate", "steps_per_sec", "gradient_norm", "gradient_norm/class_net/bias", "instances_cut_off")
    tags = training_tags([*others, *ONE_STAGE])
    assert [tags[name] for name in others] == list(others)
    assert [tags[name] for name in ONE_STAGE] == list(loss_tags(ONE_STAGE).values())
