"""The figures of many steps as one, for a log line or a point in TensorBoard."""

import math

from detection.training.engine.loop import LoopReport

# Figures of which the last step's value is told, and those that are counts.  Of all others the mean is.
_LAST = ("learning_rate", "loss_scale", "skipped_steps")
_SUMMED = ("instances_cut_off",)


class Window:
    """Gathers reports until somebody looks.

    Args:
        batch_size: images of a step.
    """

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self._reports: list[LoopReport] = []
        self._timed: list[LoopReport] = []
        self._warm = False

    @property
    def reports(self) -> int:
        """How many were gathered since somebody looked."""
        return len(self._reports)

    def add(self, report: LoopReport) -> None:
        """Adds what one call of the loop told."""
        self._reports.append(report)
        if self._warm:
            self._timed.append(report)
        self._warm = True  # the first call of all compiles: its time tells nothing

    def take(self) -> dict[str, float]:
        """Name -> value since the last call; forgets them.

        Loss terms and the gradient norm are means over the steps, `learning_rate` is the
        last step's, `instances_cut_off` and `nonfinite_steps` are counts.
        `steps_per_second`, `images_per_second` and `input_bound`, the share of time in
        which a step waited for its batch, come once there is something to tell.
        """
        figures = self._means() | {"nonfinite_steps": float(sum(report.skipped for report in self._reports))}
        seconds = sum(report.seconds for report in self._timed)
        if seconds:
            speed = sum(report.steps + report.skipped for report in self._timed) / seconds
            figures |= {
                "steps_per_second": speed,
                "images_per_second": speed * self._batch_size,
                "input_bound": sum(report.waited for report in self._timed) / seconds,
            }
        self._reports, self._timed = [], []
        return figures

    def _means(self) -> dict[str, float]:
        seen = [report for report in self._reports if report.steps]
        return {name: _value(name, seen) for name in seen[-1].last} if seen else {}


def _value(name: str, reports: list[LoopReport]) -> float:
    if name in _LAST:
        return reports[-1].last[name]
    total = math.fsum(report.sums[name] for report in reports)
    if name in _SUMMED:
        return total
    count = sum(report.counts[name] for report in reports)
    return total / count if count else math.nan
