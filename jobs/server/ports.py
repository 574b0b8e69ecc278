"""Where the exporter answers: this machine alone, and the first port that is free."""

ADDRESS = "127.0.0.1"
PORTS = range(9440, 9540)
