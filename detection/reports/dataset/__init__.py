"""The data report: one HTML page with the content of a data set and its issues."""
