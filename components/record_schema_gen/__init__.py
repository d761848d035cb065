"""The component that publishes the schema of the records, for TFX's own components."""
