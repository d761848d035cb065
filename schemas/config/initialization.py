"""The section `train.init`: initial weights from an earlier training."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.config.section import RegularExpression, Section

FineTuneType = Literal["classification", "detection", "full"]
SourceWeights = Literal["auto", "raw", "averaged"]


class InitConfig(Section):
    """Warm start: weights of an earlier training, never its optimizer or step.

    It happens once: a run with checkpoints of its own resumes from these.
    """

    checkpoint: str | None = Field(
        None,
        description="warm start from: a checkpoint (`.../ckpt-500`) or a folder of them, the output of `train`, "
        "a SavedModel, a `Model` or `ModelRun` of a pipeline, another program's TensorFlow checkpoint",
    )
    from_previous_model: bool = Field(
        False,
        description="in a pipeline, warm start from the last blessed model instead; before there is one, "
        "from `checkpoint` or `model.backbone_weights`, or from random weights",
    )
    fine_tune_type: FineTuneType = Field(
        "detection",
        description="classification: the backbone only; detection: all variables, class outputs only for "
        "categories that both have, by name; full: all variables, the categories have to be the same",
    )
    weights: SourceWeights = Field(
        "auto",
        description="weights of `checkpoint`: raw, averaged (EMA weights), or auto: EMA weights of variables with one",
    )
    rename: tuple[tuple[RegularExpression, str], ...] = Field(
        (),
        description="pairs [regular expression, replacement], applied in turn to the variable names in `checkpoint`",
    )
    skip: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see train.pattern_match: variables whose path matches are not loaded",
    )
    skip_mismatch: bool = Field(
        False,
        description="do not load variables that the source lacks, or has in another shape; false: they are an error",
    )

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.checkpoint is None:
            self.refuse(("weights", "rename"), "without checkpoint; set checkpoint")
        if not self.has_source:
            self.refuse(
                ("fine_tune_type", "skip", "skip_mismatch"),
                "without a warm start; set checkpoint or from_previous_model",
            )
        return self

    @property
    def has_source(self) -> bool:
        """True if there is a warm start."""
        return self.checkpoint is not None or self.from_previous_model

    @property
    def leaves_some(self) -> bool:
        """True if a warm start may leave variables unset."""
        return bool(self.skip) or self.skip_mismatch
