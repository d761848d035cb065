"""The section `train.init`: initial weights from an earlier training."""

from typing import Literal

from pydantic import Field

from schemas.config.section import RegularExpression, Section

FineTuneType = Literal["classification", "detection", "full"]
SourceWeights = Literal["auto", "raw", "averaged"]


class InitConfig(Section):
    """Warm start: weights of an earlier training, without its optimizer and step.

    It happens once: a run that has checkpoints resumes from them.
    """

    checkpoint: str | None = Field(
        None,
        description="initial weights: a checkpoint (`.../ckpt-500`), the output of `train` or a `ModelRun` of a "
        "pipeline (the checkpoint that it exported), a folder of checkpoints (the newest), a SavedModel, a `Model` of "
        "a pipeline, a push directory (the newest version), or another program's TensorFlow checkpoint",
    )
    from_previous_model: bool = Field(
        False,
        description="in a pipeline, start from the last blessed model; if there is none, from `checkpoint`, "
        "`model.backbone_weights` or random weights",
    )
    fine_tune_type: FineTuneType = Field(
        "detection",
        description="classification: load the backbone only; detection: load all variables, class outputs only for "
        "categories in both, by name; full: load all variables, the categories have to be the same",
    )
    weights: SourceWeights = Field(
        "auto",
        description="weights to load from `checkpoint`: raw, averaged (EMA weights), or auto: the EMA weights of "
        "variables that have them",
    )
    rename: tuple[tuple[RegularExpression, str], ...] = Field(
        (),
        description="pairs [regular expression, replacement] to apply in order to the variable names of `checkpoint`",
    )
    skip: tuple[RegularExpression, ...] = Field(
        (), description="regular expressions, see train.pattern_match: do not load variables whose path matches"
    )
    skip_mismatch: bool = Field(
        False,
        description="do not load variables that are missing in the source or have another shape; false: they are an "
        "error",
    )

    def _check_keys(self) -> None:
        self.refuse(("weights", "rename"), "without checkpoint; set checkpoint", when=self.checkpoint is None)
        if not self.has_source:
            self.refuse(
                ("fine_tune_type", "skip", "skip_mismatch"),
                "without a warm start; set checkpoint or from_previous_model",
            )

    @property
    def has_source(self) -> bool:
        """True if the section has a warm start."""
        return self.checkpoint is not None or self.from_previous_model

    @property
    def leaves_some(self) -> bool:
        """True if a warm start may leave variables unset."""
        return bool(self.skip) or self.skip_mismatch
