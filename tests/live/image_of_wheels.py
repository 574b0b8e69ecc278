"""Builds the nodes' image from a checkout of a test's own: `PROJECT REPOSITORY`, as arguments.

Writes what the build says, and the image's name last.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

from cluster.compose import image
from cluster.compose.engine import Engine


def main() -> None:
    project, repository = sys.argv[1:]
    image.PROJECT, image.IMAGE = Path(project), repository
    image.DEFAULT_TAG = f"{repository}:latest"

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    say(image.ensure_image(Engine.connect(), nullcontext, say))


if __name__ == "__main__":
    main()
