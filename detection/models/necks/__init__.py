"""Necks: feature maps of a backbone to a feature pyramid."""
