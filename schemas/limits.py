"""Limits of input, each far above any real data set, and measured (docs/data.md, "Limits").

The limits bound time and memory for damaged and hostile files.
"""

# COCO JSON
MAX_ENTRY = 32 << 20  # bytes of one entry; a polygon of a million vertices has some 20 MB
MAX_DEPTH = 64  # levels of nesting; COCO has three. Python's stack limit varies
MAX_IMAGE_ENTRIES = 64 << 20  # bytes of JSON of one image's entries together, in a file or packed into a record
MAX_CATEGORIES = 100_000  # per data set; the largest public ones have some 20,000
MAX_LABEL_MAP = 64 << 20  # bytes of a label map; 100,000 categories have some 10 MB

# TFRecords of other tools
MAX_GZIPPED_RECORD = 256 << 20  # bytes of one record of a gzipped file, not bounded by the file size
MAX_NUMBERS = 1 << 25  # values of one key of a record; a mask of 8192x4096 pixels has 2^25

# Configuration
MAX_CONFIG = 1 << 20  # characters of a configuration file, or of one --set
MAX_CONFIG_DEPTH = 32  # levels of nesting
MAX_CONFIG_VALUES = 10_000  # values, including repeated aliases
