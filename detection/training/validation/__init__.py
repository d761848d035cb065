"""Evaluating checkpoints, while a run trains or beside it: the best one, early stopping."""
