"""What the records below a `run.root` say: its runs, and what a pushed model came from."""
