"""The work of the components without a pipeline, one module per command."""
