"""The report of detections from a file."""

from pathlib import Path
from typing import Any

from detection.analysis.analyse import analyse
from detection.coco.params import make_params
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.evaluation.pictures import pictures_in
from pipelines.standalone.compare import load_ground_truth, read_results_file


def write_file_report(
    path: str, *, ground_truth: str, detections: str, params: dict[str, Any], images: str | None
) -> None:
    """Analyses detections and writes the page.

    Args:
        path: of the HTML file.
        ground_truth: COCO annotation file.
        detections: COCO results file.
        params: keyword arguments of `make_params`.
        images: folder of the images; None: no pictures.

    Raises:
        ConfigError: params that no analysis has.
        DataError: a file or folder that cannot be read, or written.
    """
    chosen = make_params(**params)
    truth, found = load_ground_truth(ground_truth), read_results_file(detections, chosen.iou_type)
    pictures = None if images is None else pictures_in(images, truth["images"])
    write_evaluation_report(
        path,
        analyse(truth, found, params=chosen),
        title=f"{Path(detections).name} on {Path(ground_truth).name}",
        facts={"detections": detections, "ground truth": ground_truth},
        pictures=pictures,
    )
