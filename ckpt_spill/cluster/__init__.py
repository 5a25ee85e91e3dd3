"""What lives inside scheduler and workers: who sees which store, the locality queue, files for peers."""
