"""The history of a `run.root`: what each component read and made, in files that need no ML Metadata."""
