"""Components that select from the history: baseline, base model, span window."""
