"""Ready-made clusters, one file each."""
