"""What records tell of examples, models, verdicts and pushes, in fields with names."""

from collections.abc import Sequence
from dataclasses import dataclass

from components.history.records import Record


@dataclass(frozen=True)
class ExamplesRecord:
    """`Examples` of a run.

    source: data set that the span belongs to.
    version: version of the span; None: the data has no versions.
    identity: see `read.IDENTITY_PROPERTY`.
    """

    uri: str
    source: str
    span: int
    version: int | None
    splits: list[str]
    identity: str


@dataclass(frozen=True)
class ModelRecord:
    """A trained `Model`.

    record: record of its training.
    training: identity of its training, without the base model.
    identity: identity of its training, with the base model; "": not known.
    base_model: URI of the model that its weights started from; None: no model.
    examples: URIs of the `Examples` that it was trained on, the newest span first.
    config: digest of its configuration, see `records.store_config`; None: not known.
    """

    record: Record
    uri: str
    training: str
    identity: str
    base_model: str | None
    examples: Sequence[str]
    config: str | None

    @property
    def model_run(self) -> str:
        """URI of the ModelRun beside it."""
        return self.record.output("model_run").uri


@dataclass(frozen=True)
class BlessingRecord:
    """The verdict on a `Model`.

    evaluation: URI of the `ModelEvaluation`.
    run: id of the run.
    """

    model: str
    blessed: bool
    evaluation: str
    run: str


@dataclass(frozen=True)
class PushRecord:
    """A pushed `Model`.

    destination: folder of the version.
    version: name of this folder.
    model: URI of the model.
    time: of the push, in ISO format with the time zone.
    digest: digest of the model's files; "": not known.
    run: id of the run.
    """

    destination: str
    version: str
    model: str
    time: str
    digest: str
    run: str
