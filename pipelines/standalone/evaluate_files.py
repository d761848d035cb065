"""The report of detections from a file."""

from pathlib import Path
from typing import Any

from detection.analysis.analyse import analyse
from detection.coco.params import make_settings
from detection.reports.evaluation.page import write_evaluation_report
from detection.reports.evaluation.pictures import pictures_in
from detection.storage.json_files import is_pipe
from pipelines.standalone.compare import load_ground_truth, read_results_file
from schemas.errors import ConfigError


def check_report_flags(
    *,
    report: str | None,
    images: str | None,
    use_cats: bool,
    lvis: bool,
    skip_invalid: bool,
    ground_truth: str,
    detections: str,
) -> None:
    """Refuses flags that do not fit a report.

    Raises:
        ConfigError: images without a report; a report of what has none, or of a pipe.
    """
    if images is not None and report is None:
        raise ConfigError("--images is for the report's pictures: give --report, too.")
    if report is None:
        return
    for flag, given in (("--no-cats", not use_cats), ("--lvis", lvis), ("--skip-invalid", skip_invalid)):
        if given:
            raise ConfigError(f"--report does not go with {flag}: it tells of COCO's evaluation of whole, sound files.")
    for path in (ground_truth, detections):
        if is_pipe(path):
            raise ConfigError(f"--report reads {path} a second time, which a pipe does not allow. Write it to a file.")


def write_file_report(
    path: str, *, ground_truth: str, detections: str, settings: dict[str, Any], images: str | None
) -> None:
    """Analyses detections and writes the page.

    Args:
        path: of the HTML file.
        ground_truth: COCO annotation file.
        detections: COCO results file.
        settings: keyword arguments of `make_settings`.
        images: folder of the images; None: no pictures.

    Raises:
        ConfigError: settings that no analysis has.
        DataError: a file or folder that cannot be read, or written.
    """
    chosen = make_settings(**settings)
    truth, found = load_ground_truth(ground_truth), read_results_file(detections, chosen.iou_type)
    pictures = None if images is None else pictures_in(images, truth["images"])
    write_evaluation_report(
        path,
        analyse(truth, found, settings=chosen),
        title=f"{Path(detections).name} on {Path(ground_truth).name}",
        facts={"detections": detections, "ground truth": ground_truth},
        pictures=pictures,
    )
