"""Validation of what enters an evaluation."""
