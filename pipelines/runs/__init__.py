"""Runs in this process: checks, decision, execution, results; status and lineage of those that were recorded."""
