"""A `run.root` with the records of two days, written by hand: nothing was run."""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from components.history.pushed_versions import ADDED_FILES, digest_of
from components.history.records import Execution, Output, Run
from components.history.store import REPORTS, digest_of_text, relative_paths, store_config, write_run
from detection.storage.atomic import write_json, write_text
from detection.storage.paths import join
from detection.storage.processes import this_process

SOURCE = "gs://data/{SPAN}"


class Day(NamedTuple):
    """What a day's run made."""

    examples: str
    model: str
    evaluation: str
    pushed: str
    config: str


def record_day(root: str, span: int, *, base: Day | None = None, with_run: bool = True) -> Day:
    """Records the examples of a span, a model trained on it and on its base's, its verdict, push and run."""
    folder, config = join(root, "history"), f"run:\n  root: {root}\ntrain:\n  seed: {span}\n"
    day = Day(
        examples=join(root, f"artifacts/examples/{span}"),
        model=join(root, f"artifacts/model/{span}"),
        evaluation=join(root, f"artifacts/evaluation/{span}"),
        pushed=join(root, f"serving/{1000 + span}"),
        config=config,
    )
    store_config(root, config)
    for saved in (join(day.model, "Format-Serving"), day.pushed):
        write_saved_model(saved, config, fingerprint=f"of {span}", step=10 * span)
    for record in _records(day, span, base):
        write_json(
            join(folder, record.component, f"{record.ended}--run-{span}.json"), relative_paths(asdict(record), root)
        )
    write_text(join(day.examples, "dataset.json"), "{}")
    write_json(
        join(day.evaluation, "metrics.json"),
        {"iou_type": "bbox", "metrics": {"AP": span / 10, "AP50": 0.5}, "per_category": []},
    )
    write_json(join(day.evaluation, "blessing.json"), {"blessed": True, "reasons": [f"AP is {span}"], "baseline": None})
    if with_run:
        write_run(root, run_of(day, span))
    return day


def _records(day: Day, span: int, base: Day | None) -> list[Execution]:
    used = [day.examples, *([] if base is None else [base.examples])]
    data: dict[str, Any] = {
        "data_source": SOURCE,
        "span": span,
        "version": 2,
        "identity": f"data of {span}",
        "split_names": '["train", "eval"]',
    }
    model: dict[str, Any] = {"training": f"training {span}", "config": digest_of_text(day.config)}
    pushed: dict[str, Any] = {
        "pushed": 1,
        "pushed_destination": day.pushed,
        "pushed_version": str(1000 + span),
        "model_digest": digest_of(join(day.model, "Format-Serving"), ignored=ADDED_FILES),
    }
    run: dict[str, Any] = {"run": f"run-{span}", "ended": f"2026010{span}T030000.000000Z"}
    return [
        Execution("CocoExampleGen", "done", outputs={"examples": [Output(day.examples, "Examples", data)]}, **run),
        Execution(
            "DetectionTrainer",
            "done",
            inputs={"examples": used, "base_model": [] if base is None else [base.model]},
            outputs={"model": [Output(day.model, "Model", model)]},
            **run,
        ),
        Execution(
            "CocoEvaluator",
            "done",
            inputs={"model": [day.model]},
            outputs={
                "evaluation": [Output(day.evaluation, "ModelEvaluation")],
                "blessing": [Output(day.evaluation, "ModelBlessing", {"blessed": 1})],
            },
            **run,
        ),
        Execution(
            "SavedModelPusher",
            "done",
            inputs={"model": [day.model]},
            outputs={"pushed_model": [Output(day.pushed, "PushedModel", pushed)]},
            **run,
        ),
    ]


def run_of(day: Day, span: int, **fields: Any) -> Run:
    """The record of the run of a span."""
    nodes = ("CocoExampleGen", "DetectionTrainer", "CocoEvaluator", "SavedModelPusher")
    values = {
        "id": f"run-{span}",
        "trigger": f"span {span}",
        "state": "done",
        "started": f"2026-01-0{span}T02:00:00+00:00",
        "ended": f"2026-01-0{span}T03:00:00+00:00",
        "process": this_process(),
        "data": {"source": SOURCE, "span": span, "version": 2, "identity": f"data of {span}", "examples": day.examples},
        "components": {node: {"state": "done", "seconds": 1.0} for node in nodes},
        "model": day.model,
        "evaluation": day.evaluation,
        "metrics": {"AP": span / 10},
        "blessed": True,
        "pushed_path": day.pushed,
    }
    return TypeAdapter(Run).validate_python(values | fields)


def write_saved_model(folder: str, config: str | None, *, fingerprint: str | None, step: int | None) -> None:
    """Writes the files of a SavedModel that tell where it comes from."""
    contents = {"fingerprint.pb": fingerprint, "assets.extra/config.yaml": config}
    for name, text in contents.items():
        if text is not None:
            write_text(join(folder, name), text)
    if step is not None:
        write_json(join(folder, "assets.extra/training.json"), {"step": step, "weights": "ema"})
    write_text(join(folder, "saved_model.pb"), "graph")


def record_report(day: Day, root: str, span: int, *, run: str, ended: str) -> None:
    """Records the report of a compiled run, which ends at a time in ISO format."""
    components = {"CocoExampleGen": {"state": "reused", "seconds": 0.0}}
    report = run_of(day, span, id=run, trigger="not recorded", runner="", ended=ended, components=components)
    write_run(root, report, folder=REPORTS)


def publish_rollback(root: str, *, to: int, refused: int) -> int:
    """Writes the version that a rollback publishes; returns its number."""
    number = refused + 1
    versions = {one: join(root, f"serving/{one}") for one in (to, refused, number)}
    shutil.copytree(versions[to], versions[number])
    digest = digest_of(versions[refused], ignored=ADDED_FILES)
    record = {"version": to, "replaced": refused, "refused_models": [digest]}
    write_json(join(versions[number], "assets.extra/rollback.json"), record)
    return number


def local_root(folder: Path) -> str:
    """A root with two days, the second of which builds on the first."""
    root = str(folder / "run")
    record_day(root, 2, base=record_day(root, 1))
    return root
