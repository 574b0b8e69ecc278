"""The exporter: one process that shows a folder of runs as metrics, as JSON and as a page."""
