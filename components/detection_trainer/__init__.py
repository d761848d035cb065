"""The component that trains a detector: Examples in, SavedModel out."""
