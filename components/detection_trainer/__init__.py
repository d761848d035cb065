"""Examples in, trained SavedModel out."""
