"""Runners: LocalDagRunner and BeamDagRunner."""
