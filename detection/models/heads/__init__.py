"""Heads, and post-processing of their outputs."""
