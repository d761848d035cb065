"""TFMA's side of the evaluation: EvalConfig, slices, and the files that TFMA reads."""
