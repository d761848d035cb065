"""Converts the configurations of other programs to ours."""
