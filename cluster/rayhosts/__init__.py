"""Nodes that are machines of a Ray cluster, and a Ray cluster inside a lab to rehearse on."""
