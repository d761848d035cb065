"""Heads, and the post-processing of their outputs."""
