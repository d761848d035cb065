"""Runs small pipelines again and again below one `run.root`, as `run` does."""

import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfx.orchestration.pipeline import Pipeline

from pipelines.metadata_database import metadata_connection, open_store
from pipelines.runners.local import RUNNERS
from pipelines.runs.results import read_nodes
from schemas.config.run import MetadataConfig


def run_nodes(nodes: Sequence[Any], root: str | Path, *, runner: str = "local") -> dict[str, str]:
    """Runs nodes as a pipeline; returns the state of each: "done" or "reused"."""
    run_id = f"{uuid.uuid4().hex[:8]}.1"
    with tempfile.TemporaryDirectory() as scratch:
        connection = metadata_connection(MetadataConfig(), Path(scratch, "metadata.sqlite"))
        pipeline = Pipeline(
            pipeline_name="stubs",
            pipeline_root=f"{scratch}/pipeline",
            components=list(nodes),
            enable_cache=False,
            metadata_connection_config=connection,
        )
        RUNNERS[runner](pipeline, run_id)
        store = open_store(connection, MetadataConfig())
        return {node: result.state for node, result in read_nodes(store, run_id).nodes.items()}
