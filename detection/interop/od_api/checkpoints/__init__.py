"""The Object Detection API's checkpoints: their names, formats and values."""
