"""Several jobs that take turns within one set of ranks."""
