"""`run --if-changed` with a nap for the pipeline, for `tests.forked_calls`."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from components.history.records import Run
from components.history.store import REPORTS, write_run
from detection.storage.atomic import write_text
from detection.storage.paths import join
from schemas.artifacts import REPORT_HTML
from schemas.config.config_io import load_config

MODULES = ("pipelines.runs.execute", "pipelines.runs.results")
REPLACED = (
    ("pipelines.runs.execute", "_run_pipeline"),
    ("pipelines.runs.execute", "check_run"),
    ("pipelines.runs.results", "read_results"),
)
STARTS = "stub-starts"  # folder below run.root: a file for each start of a run
END = "stub-end"  # file below run.root that ends a run without a length


def tick(root: str, data: str, work: float | None) -> None:
    """Runs once if something changed.

    Args:
        root: `run.root`.
        data: data set.
        work: seconds that the pipeline takes; negative: it fails after them; None: until `END` is there.
    """
    import pipelines.runs.results
    from pipelines.runs import execute

    def nap(config: Any, layout: Any, run: Run) -> None:
        write_text(join(root, STARTS, f"{config.data.span}-{run.id}-{time.time_ns()}"), "")
        while work is None and not Path(root, END).exists():
            time.sleep(0.02)
        time.sleep(abs(work or 0.0))
        if work and work < 0:
            raise RuntimeError("the stub fails")
        evaluation = join(root, "evaluation", run.id)
        write_text(join(evaluation, REPORT_HTML), "")
        write_run(root, replace(run, evaluation=evaluation), folder=REPORTS)

    replaced: Any = execute
    replaced._run_pipeline, replaced.check_run = nap, lambda *_, **__: None
    results: Any = pipelines.runs.results
    results.read_results = lambda *_, **__: SimpleNamespace(summary=dict)
    config = load_config(None, [f"run.root={root}", f"data.root={data}"])
    execute.execute_run(config, runner="local", if_changed=True)
