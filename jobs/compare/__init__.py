"""Several runs of the same training, held against one another: `make compare`."""
