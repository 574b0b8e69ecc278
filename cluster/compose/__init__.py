"""Nodes that are containers: `docker-compose.yml` filled in, and what is done inside of it."""
