"""Spans: data that arrives in new folders with time; which files an execution reads, and their fingerprint."""
