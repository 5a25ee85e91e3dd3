"""Worker memory whose disk tier is the store: compressed, checksummed, and gone with the worker."""
