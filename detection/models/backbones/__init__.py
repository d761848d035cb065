"""Backbones: images to feature maps."""
