"""The contracts: record features, artifact files, typed configuration, errors."""
