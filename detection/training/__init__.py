"""Training: `train.py` runs it, `build_*.py` build its parts from the config."""
