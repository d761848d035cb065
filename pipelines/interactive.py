"""The pipeline in a notebook: its nodes run one by one, and show their results."""

from tfx.dsl.components.base.base_node import BaseNode
from tfx.orchestration.experimental.interactive.interactive_context import InteractiveContext

from pipelines.folders import RunLayout
from pipelines.pipeline import create_pipeline
from schemas.config.config import Config


def interactive_pipeline(config: Config) -> tuple[InteractiveContext, dict[str, BaseNode]]:
    """Creates the pipeline of `create_pipeline` for TFX's InteractiveContext.

    All outputs are below `run.root`, with a metadata database of their own: the folder is not one for `run`.

    Args:
        config: the complete configuration; `run.root` is local, `data.root` or `data.splits` is set.

    Returns:
        TFX's context, whose `run(node)` runs a node and shows its outputs (outside of IPython it does nothing), and the
        nodes by their id, in the order to run them.

    Raises:
        ConfigError: no data set.
    """
    layout = RunLayout(config)
    pipeline = create_pipeline(config)
    context = InteractiveContext(pipeline_name=config.run.name, pipeline_root=layout.artifacts)
    return context, {node.id: node for node in pipeline.components}
