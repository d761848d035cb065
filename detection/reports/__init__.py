"""Reports: HTML pages, pictures and TensorBoard summaries."""
