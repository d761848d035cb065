"""The TF Object Detection API: its configurations and its checkpoints."""
