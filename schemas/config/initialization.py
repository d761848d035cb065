"""Where a run's first weights come from."""

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.config.section import RegularExpression, Section

FineTuneType = Literal["classification", "detection", "full"]
SourceWeights = Literal["auto", "raw", "averaged"]


class InitConfig(Section):
    """Warm start: weights of an earlier training, never its optimizer or step.

    It happens once: a run that has checkpoints of its own goes on from those.
    """

    checkpoint: str | None = Field(
        None,
        description="warm start from: a checkpoint (`.../ckpt-500`) or a folder of them, the output of `train`, "
        "a SavedModel, a `Model` or `ModelRun` of a pipeline, another program's TensorFlow checkpoint",
    )
    from_previous_model: bool = Field(
        False,
        description="in a pipeline, warm start from the last blessed model instead; before there is one, "
        "from `checkpoint` or `model.backbone_weights`, or afresh",
    )
    fine_tune_type: FineTuneType = Field(
        "detection",
        description="classification: the backbone only; detection: everything, of the class outputs those of "
        "categories that both have, by name; full: everything, the categories being the same",
    )
    weights: SourceWeights = Field(
        "auto", description="of `checkpoint`: raw, averaged, or auto: averages of what has one"
    )
    rename: tuple[tuple[RegularExpression, str], ...] = Field(
        (),
        description="pairs [regular expression, replacement], applied in turn to the variable names in `checkpoint`",
    )
    skip: tuple[RegularExpression, ...] = Field(
        (),
        description="regular expressions, see train.pattern_match: our variables whose path matches stay as they are",
    )
    skip_mismatch: bool = Field(
        False,
        description="variables that the source lacks, or has in another shape, stay as they are; else an error",
    )

    @model_validator(mode="after")
    def _every_key_acts(self) -> Self:
        if self.checkpoint is None:
            self.refuse(("weights", "rename"), "without checkpoint, of which it tells what to read; set checkpoint")
        if not self.has_source:
            self.refuse(
                ("fine_tune_type", "skip", "skip_mismatch"),
                "without a warm start, of which it tells what to take; set checkpoint or from_previous_model",
            )
        return self

    @property
    def has_source(self) -> bool:
        """Whether a warm start is asked for."""
        return self.checkpoint is not None or self.from_previous_model

    @property
    def leaves_some(self) -> bool:
        """Whether a warm start may leave a variable as it was."""
        return bool(self.skip) or self.skip_mismatch
