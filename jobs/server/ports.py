"""Where the exporter answers: this machine alone, on the first port that is free; and, to the
Prometheus of a lab, at the gateway of its network, whose address no other lab has."""

ADDRESS = "127.0.0.1"
PORTS = range(9440, 9540)
EXPORTER = "exporter"
"""Its name among the containers of docker-compose.yml."""
GATEWAY_PORT = 9440
