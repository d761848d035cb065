"""The memory of a `run.root`: records of executions and of runs, and the module that answers questions from them."""
