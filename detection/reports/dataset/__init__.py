"""The data report: one HTML page of what a data set holds and what is wrong with it."""
