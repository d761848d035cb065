"""Self-contained HTML pages in one file, for screens of any width, light or dark, and for print."""
