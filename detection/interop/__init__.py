"""Other programs: their configurations and checkpoints, converted to ours."""
