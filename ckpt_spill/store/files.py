"""LOST: this was the lead's store/files.py (written 12:12:18, never committed).

PARTITION overwrote it by mistake at 12:15:12 with a module of the same name (now store/descriptors.py). The content could not
be found anywhere. Lead: please write your file again (free_bytes, full_disk_errors, make_directory, sync_directory, temporary,
write_atomic are imported from it) over this one. Sorry.
"""

raise ImportError(__doc__)
