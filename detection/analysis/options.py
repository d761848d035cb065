"""What an analysis may be asked for."""

from dataclasses import dataclass

from schemas.errors import ConfigError


@dataclass(frozen=True)
class AnalysisOptions:
    """Sizes and thresholds of an analysis.

    images: most images analysed; of more a sample is taken.
    replicates: of the bootstrap behind the intervals; 0: no intervals.
    confidence: of the intervals.
    iou: at which right and wrong are told apart; one of the evaluation's IoU thresholds.
    score: detections below it are left out of confusion, pictures and label errors.
    seed: of the sample and of the bootstrap.
    worst: images listed as the worst.
    examples: images listed for each error type.
    label_errors: most likely label errors listed.
    visualizations: images drawn for TensorBoard.
    max_boxes: detections drawn on such an image, those of the highest scores.
    """

    images: int = 5000
    replicates: int = 200
    confidence: float = 0.95
    iou: float = 0.5
    score: float = 0.3
    seed: int = 0
    worst: int = 12
    examples: int = 6
    label_errors: int = 50
    visualizations: int = 10
    max_boxes: int = 20

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ConfigError: one that has no meaning.
        """
        if self.images < 1:
            raise ConfigError(f"images {self.images}: an analysis needs at least 1.")
        if not 0.0 < self.confidence < 1.0:
            raise ConfigError(f"confidence {self.confidence}: give a share between 0 and 1, such as 0.95.")
        numbers = ("replicates", "seed", "worst", "examples", "label_errors", "visualizations", "max_boxes")
        negative = [name for name in numbers if getattr(self, name) < 0]
        if negative:
            raise ConfigError(f"{', '.join(negative)}: give a number from 0 on.")
