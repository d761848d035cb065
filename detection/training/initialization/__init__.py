"""Where a run's first weights come from."""
