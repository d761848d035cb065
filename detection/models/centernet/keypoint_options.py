"""Names of the heads of keypoints, options of their targets, and from their outputs to the keypoints of detections."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from schemas.config.section import Section

HEATMAP, OFFSET, REGRESSION = KEYPOINT_TASKS = ("keypoint_heatmap", "keypoint_offset", "keypoint_regression")


class KeypointOptions(Section):
    """Targets and losses of the keypoints that the categories name."""

    spread: dict[str, PositiveFloat] = Field(
        {},
        description="standard deviation of keypoints' Gaussians by name, as a factor of that of the object's center; "
        "1 for other names",
    )
    radius: NonNegativeInt = Field(
        3, description="cells within this distance of a keypoint learn its offset, of a center its keypoints"
    )
    per_keypoint_offset: bool = Field(True, description="each keypoint has its own offsets; false: they share one")
    heatmap_loss_weight: NonNegativeFloat = 1.0
    offset_loss_weight: NonNegativeFloat = 1.0
    regression_loss_weight: NonNegativeFloat = 0.1


class KeypointPostprocess(Section):
    """Options from heat-maps to keypoints, with the TF Object Detection API's names."""

    num_candidates_per_keypoint: PositiveInt = Field(100, description="best peaks of each keypoint's heat-map")
    keypoint_candidate_score_threshold: float = Field(0.1, ge=0.0, le=1.0, description="min score of a peak")
    peak_max_pool_kernel_size: PositiveInt = Field(3, description="side in cells in which a peak is the maximum")
    candidate_ranking_mode: Literal[
        "min_distance", "score_distance_ratio", "score_scaled_distance_ratio", "gaussian_weighted"
    ] = Field(
        "min_distance",
        description="the best candidate for a regressed position: the nearest; or the one with the highest score / "
        "(distance + score_distance_offset), score / (distance + score_distance_multiplier * the box's longer side), "
        "or score * exp(-distance^2 / (2 sigma^2)), which is then the keypoint's score",
    )
    score_distance_offset: PositiveFloat = Field(1.0, description="in cells")
    score_distance_multiplier: PositiveFloat = 0.1
    std_dev_multiplier: PositiveFloat = Field(1.0, description="factor of sigma in gaussian_weighted")
    box_scale: PositiveFloat = Field(1.2, description="scale of the box that may contain the candidate")
    candidate_search_scale: PositiveFloat = Field(
        0.3, description="max distance of the nearest candidate, as a fraction of the scaled box's longer side"
    )
    unmatched_keypoint_score: float = Field(
        0.1, ge=0.0, le=1.0, description="score of a regressed position without a candidate"
    )
    clip_out_of_frame_keypoints: bool = Field(
        False, description="move keypoints outside of the image to its border, with a score of 0"
    )
    rescore_instances: bool = Field(False, description="multiply the score of a box by the mean score of its keypoints")
    rescoring_threshold: NonNegativeFloat = Field(0.0, description="keypoints in that mean have a score above this")
