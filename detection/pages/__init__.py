"""HTML pages of ours: one file each that loads nothing, for screens of any width, light or dark, and paper."""
