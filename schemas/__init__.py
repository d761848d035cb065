"""Contracts: record features, artifact files, serving signatures, configuration, errors."""
