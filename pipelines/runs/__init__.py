"""One run: its folders, execution, repair, results and summary."""
