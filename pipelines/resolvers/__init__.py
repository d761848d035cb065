"""Which models and spans of earlier runs a run uses."""
