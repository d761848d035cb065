"""The section `train` of the configuration."""
