"""Pushes a blessed Model: a new version in the folder that a model server watches."""
