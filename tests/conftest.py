"""What a test needs of the machine: a marked test skips with the reason where it cannot run.

`DDPLAB_REQUIRE=netns,docker` turns a skip of a test with one of these markers into a failure.
"""

import functools
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping

import pytest

from tests import prometheus

REQUIRE = "DDPLAB_REQUIRE"
KNOWN = ("netns", "docker", "ray", "browser", "gpu", "prometheus")
TIMEOUT_S = 20


def _required() -> frozenset[str]:
    return frozenset(word for word in os.environ.get(REQUIRE, "").split(",") if word)


def pytest_configure() -> None:
    unknown = _required() - set(KNOWN)
    if unknown:
        raise pytest.UsageError(
            f"{REQUIRE} names {', '.join(sorted(unknown))}; known: {', '.join(KNOWN)}"
        )
    _hear_signals()
    _keep_what_is_compiled()


def _keep_what_is_compiled() -> None:
    """Tests start thousands of processes, which would compile all modules again and again where
    containers' usual PYTHONDONTWRITEBYTECODE is set."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _hear_signals() -> None:
    """What tests start hears Ctrl-C and a hang-up, also where we began with nohup or with `&`."""
    if threading.current_thread() is threading.main_thread():
        for number, usual in (
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGHUP, signal.SIG_DFL),
        ):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, usual)


@functools.cache
def netns_reason() -> str | None:
    """Why namespaces cannot be made here; None where they can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    for command in ("unshare", "nsenter", "ip", "tc"):
        if shutil.which(command, path=path) is None:
            return f"{command} is not installed"
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    link = ["ip", "link", "add", "port0", "type", "veth", "peer", "name", "fab0"]
    result = subprocess.run(
        ["unshare", *user, *spaces, *link],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return f"namespaces are refused: {result.stderr.strip()}" if result.returncode else None


@functools.cache
def docker_reason() -> str | None:
    """Why no node can be a container here; None where one can, and its image is there."""
    from cluster.backends import BACKENDS

    fit = BACKENDS["compose"].fit()
    if not fit.ok:
        return fit.reason
    from cluster.compose.engine import Engine
    from cluster.compose.image import image_name

    engine = Engine.connect()
    if not engine.has_image(image_name(engine)):
        return "the nodes' image is not built: python -m cluster.compose.image"
    return None


def ray_reason() -> str | None:
    """Why no Ray cluster can be started here; None where one can."""
    return None if importlib.util.find_spec("ray") else "ray is not installed"


@functools.cache
def gpu_reason() -> str | None:
    """Why there is no GPU for a test; None where there is one. CUDA itself is not asked: a process
    that has begun with it cannot fork ranks that use it.
    """
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi is not installed"
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if listed.returncode or not listed.stdout.strip():
        return f"the driver shows no GPU: {listed.stderr.strip() or listed.stdout.strip()}"
    import torch

    return None if torch.version.cuda else f"torch {torch.__version__} was built without CUDA"


REASONS: Mapping[str, Callable[[], str | None]] = {
    "netns": netns_reason,
    "docker": docker_reason,
    "gpu": gpu_reason,
    "prometheus": prometheus.reason,
    "ray": ray_reason,
}


FIRST = ("tests/live/", "tests/tools/")
MAY_SKIP = pytest.StashKey[bool]()
"""Of a test that lacks something which is not required, though something else that it needs is."""


@pytest.fixture(autouse=True)
def own_code_is_forgotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test imported from a folder of its own is not another test's."""
    path, before = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    folder = f"{tmp_path_factory.getbasetemp()}{os.sep}"
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(folder):
            del sys.modules[name]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for labs and for pip takes longest, so it begins; fast ones fill the gaps."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a third of the time tests wait for links and containers."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """What was imported stays: it is not searched for garbage again, here or in forked ranks."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = _required()
    for marker, reason in sorted(REASONS.items(), key=lambda each: each[0] not in required):
        if item.get_closest_marker(marker) is not None and (why := reason()):
            item.stash[MAY_SKIP] = marker not in required
            pytest.skip(f"{marker}: {why}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needed = [name for name in _required() if item.get_closest_marker(name) is not None]
    allowed = item.stash.get(MAY_SKIP, False)
    if report.skipped and needed and not allowed and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE} forbids to skip this test: {report.longrepr}"
    return report
