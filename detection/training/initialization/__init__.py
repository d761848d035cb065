"""Initial weights of a run: pretrained backbones, warm starts from checkpoints and SavedModels."""
