"""Google Cloud Storage: the only modules that know its client library."""
