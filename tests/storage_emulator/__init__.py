"""Cloud Storage as the documentation of its JSON API describes it, in a process of its own, with faults on demand."""
