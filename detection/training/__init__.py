"""Training: `train.py` tells the whole story, `build_*.py` build its parts from the config."""
