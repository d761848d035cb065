"""Names that mark the state of a folder.

A local folder is complete if it exists: it appears by one rename. A remote one is complete if its last file exists:
one of its own that is written last, and that readers require, such as `saved_model.pb`.
"""

# JSON, the record of the writer: in a remote folder, or a hidden local one, that is being written or removed.
UNFINISHED_MARKER = ".unfinished"
# JSON, the record of the process that holds the folder; not part of the folder's content.
LOCK_FILE = ".lock"
# Ends `.NAME.XXXXXXXX.tmp`, the name of a file or folder beside NAME until it is complete.
TEMPORARY_SUFFIX = ".tmp"
# Written and removed to test that a folder can be written; one name, so the next probe removes the leftover of a kill.
PROBE = f".probe{TEMPORARY_SUFFIX}"

OWN_FILES = (UNFINISHED_MARKER, PROBE, LOCK_FILE)  # in a remote folder, but not of its content
