"""Packaging entry for Beam workers (`--setup_file`) and container images.

Name, version and the rest of the metadata stand in pyproject.toml.
"""

from setuptools import setup

setup()
