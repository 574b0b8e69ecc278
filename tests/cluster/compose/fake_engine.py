"""An engine that remembers what it was asked for, and builds the nodes' image in no time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docker.errors import APIError

from cluster.compose.engine import Engine

GOOD = [{"stream": "Step 1/2 : FROM base\n"}, {"stream": "Successfully built 0123abcd\n"}]
BAD = [
    {"stream": "ERROR: No matching distribution found for click\n"},
    {"stream": "Removing intermediate container 99\n"},
    {"error": "The command '/bin/sh -c pip' returned a non-zero code: 1"},
]


class FakeApi:
    """An engine's API that has some images, and remembers what it was asked for."""

    def __init__(self, says: list[dict[str, str]], *images: str) -> None:
        self.says, self.images, self.asked = says, set(images), []
        self.context: dict[str, str] = {}

    def build(self, **options: Any) -> Iterator[dict[str, str]]:
        folder = Path(options["path"])
        self.asked.append(("build", options["tag"], options["buildargs"]))
        self.context = {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*")
            if path.is_file()
        }
        return (part for part in self.says)

    def tag(self, built: str, repository: str, tag: str) -> None:
        self.asked.append(("tag", built, f"{repository}:{tag}"))
        self.images.add(f"{repository}:{tag}")

    def prune_images(self, filters: dict[str, Any]) -> None:
        self.asked.append(("prune", filters))

    def pull(self, base: str, **_: Any) -> list[dict[str, str]]:
        self.asked.append(("pull", base))
        if base == "refused":
            raise APIError("500", None, "no such host")
        return [{"status": "pulling"}, {"error": "manifest unknown"}]


class FakeEngine(Engine):
    """An engine of which only the API and the images are looked at."""

    def has_image(self, name: str) -> bool:
        return name in self.api.images  # type: ignore[attr-defined]


def engine(says: list[dict[str, str]] = GOOD, *images: str) -> tuple[FakeEngine, FakeApi]:
    api = FakeApi(says, *images)
    return FakeEngine(api, "unix:///fake"), api  # type: ignore[arg-type]
