"""Nodes and shaped links: makes labs, proves what their links carry, runs programs in nodes."""
