"""Self-contained HTML pages: one file each, for screens of any width, light or dark, and paper."""
