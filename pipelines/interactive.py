"""The pipeline in a notebook: its nodes run one by one, and show their results."""

from typing import NamedTuple

from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.experimental.interactive.interactive_context import InteractiveContext

from pipelines.folders import RunLayout
from pipelines.pipeline import create_pipeline
from schemas.config.config import Config


class InteractivePipeline(NamedTuple):
    """A pipeline for a notebook.

    context: TFX's context, whose `run(node)` runs a node and shows its outputs; outside of IPython it does nothing.
    nodes: nodes by their id, in the order to run them.
    """

    context: InteractiveContext
    nodes: dict[str, BaseNode]


def interactive_pipeline(config: Config) -> InteractivePipeline:
    """Creates the pipeline of `create_pipeline` for TFX's InteractiveContext.

    All outputs are below `run.root`, with a metadata database of their own: the folder is not one for `run`.

    Args:
        config: the complete configuration; `run.root` is local, `data.root` or `data.splits` is set.

    Raises:
        ConfigError: no data set.
    """
    layout = RunLayout(config)
    pipeline = create_pipeline(config)
    context = InteractiveContext(pipeline_name=config.run.name, pipeline_root=layout.artifacts)
    return InteractivePipeline(context, {node.id: node for node in pipeline.components})
