"""What is on disk: codecs, the partition file, values as buffers, the store. Nothing here knows of dask."""
