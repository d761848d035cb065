"""The pipeline, its runners, run configurations and the demo's data."""
