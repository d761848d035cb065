"""Weight files of trainings, ours and other programs': locating, reading, importing."""
