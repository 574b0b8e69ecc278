"""The same jobs at several numbers of nodes: `make scale`."""
