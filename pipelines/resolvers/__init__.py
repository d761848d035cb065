"""Resolvers of models and spans of earlier runs: baseline, base model, span window."""
