"""Data sets whose paths hold {SPAN}, {VERSION} or dates."""
