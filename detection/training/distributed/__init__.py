"""Strategies, clusters and workers."""
