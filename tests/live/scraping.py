"""A real Prometheus that scrapes an exporter, for as long as a test asks it things."""

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.prometheus import find

WAIT_S = 60.0


@dataclass(frozen=True)
class Prometheus:
    """Where it answers; `exporter` is what it scrapes."""

    address: str
    exporter: str

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series that a PromQL expression has now."""
        asked = urllib.parse.urlencode({"query": text})
        with urllib.request.urlopen(f"{self.address}/api/v1/query?{asked}", timeout=20) as answer:
            document = json.load(answer)
        assert document["status"] == "success"
        result: list[dict[str, Any]] = document["data"]["result"]
        return result

    def values(self, text: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Value by those labels."""
        return {
            tuple(series["metric"].get(label, "") for label in labels): float(series["value"][1])
            for series in self.query(text)
        }

    def until(self, text: str) -> list[dict[str, Any]]:
        """The series, once there are any."""
        deadline_s = time.monotonic() + WAIT_S
        while not (found := self.query(text)):
            assert time.monotonic() < deadline_s, f"after {WAIT_S:g} s nothing answers {text}"
            time.sleep(0.2)
        return found

    def scraped(self) -> str:
        """What the exporter says now, as promtool accepts it."""
        with urllib.request.urlopen(f"{self.exporter}metrics", timeout=20) as answer:
            text: str = answer.read().decode()
        checked = subprocess.run(
            [str(find("promtool")), "check", "metrics"], input=text, capture_output=True, text=True
        )
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        return text


@contextmanager
def scraping(home: Path, config: Path, exporter: str) -> Iterator[Prometheus]:
    """One with this configuration; it keeps what it has in `home`."""
    listen = f"127.0.0.1:{free_port()}"
    command = [str(find("prometheus")), f"--config.file={config}", f"--web.listen-address={listen}"]
    command += [f"--storage.tsdb.path={home / 'tsdb'}", "--log.level=warn"]
    with (home / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        it = Prometheus(f"http://{listen}", exporter)
        wait_for(it.address)
        yield it
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        port: int = some.getsockname()[1]
    return port


def wait_for(address: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            urllib.request.urlopen(f"{address}/-/ready", timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s, "Prometheus does not start"
            time.sleep(0.1)
