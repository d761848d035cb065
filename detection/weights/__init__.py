"""Weight files of ours and of other programs: locating, reading, importing."""
