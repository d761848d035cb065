"""Weight files, ours and those of other programs: locating, reading, importing."""
