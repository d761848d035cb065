"""The Object Detection API's pipeline.config, as keys of our configuration."""
