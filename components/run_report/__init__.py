"""The component that ends a pipeline with a report on the run."""
