"""Runs small pipelines again and again below one `run.root`, as `run` does."""

import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfx.orchestration.metadata import sqlite_metadata_connection_config
from tfx.orchestration.pipeline import Pipeline

from components.history.queries import executions_of
from pipelines.runners.local import run_pipeline


def run_nodes(nodes: Sequence[Any], root: str | Path, *, runner: str = "local") -> dict[str, str]:
    """Runs nodes as a pipeline; returns the state of each: "done" or "reused"."""
    run = uuid.uuid4().hex[:8]
    with tempfile.TemporaryDirectory() as scratch:
        connection = sqlite_metadata_connection_config(f"{scratch}/metadata.sqlite")
        pipeline = Pipeline(
            pipeline_name="stubs",
            pipeline_root=f"{scratch}/pipeline",
            components=list(nodes),
            enable_cache=False,
            metadata_connection_config=connection,
        )
        run_pipeline(runner, pipeline, f"{run}.1")
    executed = {one.component: one.state for one in executions_of(str(root), run, 1)}
    return {node.id: "reused" for node in nodes} | executed
