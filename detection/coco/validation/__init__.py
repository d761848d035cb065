"""Validates the inputs of an evaluation."""
