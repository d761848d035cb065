"""CenterNet."""
