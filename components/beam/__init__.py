"""Beam pipelines of the components: their runner and their progress."""
