"""Tools that write tables of the documentation."""
