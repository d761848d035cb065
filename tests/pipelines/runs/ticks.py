"""`run --if-changed` with a nap for the pipeline, for `tests.forked_calls`."""

import time
from types import SimpleNamespace
from typing import Any

from detection.storage.atomic import write_text
from detection.storage.paths import join
from schemas.artifacts import REPORT_HTML
from schemas.config.config_io import load_config

MODULES = ("pipelines.runs.execute", "pipelines.runs.results")
STARTS = "stub-starts"  # folder below run.root: a file for each start of a run


def tick(root: str, data: str, work: float) -> None:
    """Runs once if something changed.

    Args:
        root: `run.root`.
        data: data set.
        work: seconds that the pipeline takes; negative: it fails after them.
    """
    import pipelines.runs.results
    from pipelines.runs import execute

    def nap(config: Any, layout: Any, open_run: Any, ended: Any) -> str:
        write_text(join(root, STARTS, f"{config.data.span}-{open_run.record.id}-{time.time_ns()}"), "")
        time.sleep(abs(work))
        if work < 0:
            raise RuntimeError("the stub fails")
        report = join(root, "evaluation", open_run.record.id)
        write_text(join(report, REPORT_HTML), "")
        open_run.update(evaluation=report)
        return report

    replaced: Any = execute
    replaced._run_pipeline, replaced.check_run = nap, lambda *_, **__: None
    results: Any = pipelines.runs.results
    results.read_results = lambda *_, **__: SimpleNamespace(summary=dict)
    config = load_config(None, [f"run.root={root}", f"data.root={data}"])
    execute.execute_run(config, runner="local", if_changed=True)
