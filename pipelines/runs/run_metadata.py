"""The ML Metadata store of a run folder."""

from pathlib import Path

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd


def open_store(metadata_file: Path, *, read_only: bool = False) -> metadata_store.MetadataStore:
    """Opens the store; makes it if need be, unless it is only read."""
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(metadata_file)
    mode = mlmd.SqliteMetadataSourceConfig
    connection.sqlite.connection_mode = mode.READONLY if read_only else mode.READWRITE_OPENCREATE
    return metadata_store.MetadataStore(connection)


def node_name(store: metadata_store.MetadataStore, execution_id: int) -> str:
    """The pipeline node of an execution: TFX names a node's context PIPELINE.NODE."""
    contexts = store.get_contexts_by_execution(execution_id)
    return next((context.name.rpartition(".")[2] for context in contexts if context.type == "node"), "")


def producer_of(store: metadata_store.MetadataStore, artifact_id: int) -> str:
    """The node that made an artifact; empty if none is known."""
    events = store.get_events_by_artifact_ids([artifact_id])
    makers = [event.execution_id for event in events if event.type == mlmd.Event.OUTPUT]
    return node_name(store, min(makers)) if makers else ""
