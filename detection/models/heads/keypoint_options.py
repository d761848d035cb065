"""Names of the heads of keypoints, and options from their outputs to the keypoints of detections."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from schemas.config.section import Section

HEATMAP, OFFSET, REGRESSION = KEYPOINT_TASKS = ("keypoint_heatmap", "keypoint_offset", "keypoint_regression")


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
    std_dev_multiplier: PositiveFloat = Field(1.0, description="of the sigma in this")
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
