"""python -m jobs.server FOLDER RUNS LOCK: the exporter's process, started by `jobs.server.process`.

FOLDER is where it meets the commands, RUNS the folder of runs, LOCK an open, locked descriptor of
FOLDER.
"""

import sys
from pathlib import Path

from jobs.server.serve import serve

if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
