"""What nobody should type: values, files, places and state, for the tests of bad input."""

import os
from pathlib import Path

BASE = {
    "up": ["--dry-run", "--backend", "netns"],
    "status": [],
    "probe": [],
    "link": ["--node", "all", "--rate", "50mbit", "--dry-run"],
    "down": [],
    "run": ["hier"],
    "compare": ["ring", "hier"],
    "scale": ["ring", "--nodes", "1", "--backend", "netns"],
    "bench": ["allreduce"],
    "proof": ["algorithms"],
    "runs": [],
    "runs-clean": ["--keep", "1"],
    "doctor": ["--quick"],
    "ray-up": [],
    "ray-down": [],
    "collect": ["part", "--out", "whole"],
    "predict": ["--example"],
}
"""A right way to call each verb, as far as its options go."""

HUGE = "9" * 400
NONSENSE = (
    "",
    " ",
    "no-such-thing",
    "grüße-日本",
    "a\nb",
    "\x1b[31mred\x07",
    "\udcff",
    "\0",
    "../../etc/passwd",
    "-1",
    "1e999",
    "nan",
    HUGE,
    "x" * 5000,
    "{",
    "a={a: " * 2000,
    ".".join("a" * 2000) + "=1",
    "[[[",
    "%s%n",
    "a: b",
    "!!python/object/apply:os.system [id]",
    "1gbps",
    "/dev/zero",
)

FILES = {
    "nothing": b"",
    "blanks": b" \n\n  \n",
    "no text": bytes(range(256)),
    "half a letter": "name: grüße".encode()[:-3],
    "a zero byte": b"name: a\0b\n",
    "two bytes a letter": "name: hier\n".encode("utf-16"),
    "a word": b"hier\n",
    "a list": b"- name: hier\n",
    "two documents": b"name: a\n---\nname: b\n",
    "a tab": b"name: a\n\tnodes: 2\n",
    "a key twice": b"name: a\nlinks: {}\nname: b\n",
    "a key twice, deeper": b"name: a\nlinks: {inter_node: {rate: 1gbit, rate: 2gbit}}\n",
    "an open bracket": b"name: [a\n",
    "many brackets": b"name: " + b"[" * 1500,
    "many braces": b"{a: " * 3000 + b"}" * 3000,
    "aliases of aliases": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "a key merged in": b"base: &b {name: a}\n<<: *b\n",
    "a key that is a list": b"? [a, b]\n: 1\n",
    "a tag": b"name: !!python/object/apply:os.system [id]\n",
    "an octal number": b"name: a\nnodes: 010\nbaseline_steps: 010\n",
    "minutes": b"name: a\nnodes: 10:30\nbaseline_steps: 10:30\n",
    "a switch for a number": b"name: a\nnodes: on\nbaseline_steps: on\n",
    "a date": b"name: 2026-11-30\n",
    "an exponent": b"name: a\nnodes: 1e6\nbaseline_steps: 1e6\n",
    "no number": b"name: a\nnodes: .nan\nbaseline_steps: .inf\n",
    "a huge number": b"name: a\nnodes: " + b"9" * 4000 + b"\nbaseline_steps: " + b"9" * 4000,
    "no name": b"name: null\n",
    "a name of two lines": b'name: "a\\nb"\n',
    "a name that steers": b'name: "\\e[31m"\n',
    "a foreign name": "name: grüße\n".encode(),
    "a key misspelt": b"nmae: a\n",
    "a key at the wrong level": b"name: a\nrate: 1gbit\nlr: 0.1\n",
    "an endless name": b"name: " + b"x" * 100_000,
    "an endless key": b"x" * 100_000 + b": 1\n",
}

PLACES = ("folder", "pipe", "link to nowhere", "link to itself", "endless", "below a file")


def place(kind: str) -> str:
    """Something else where a file is expected; its name."""
    path = Path("grüße\n.yaml" if kind == "missing, an odd name" else f"{kind}.yaml")
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to nowhere":
        path.symlink_to("nowhere")
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "below a file":
        Path("plain").write_text("")
        path = Path("plain/file.yaml")
    elif kind == "too long":
        path = Path("x" * 300 + ".yaml")
    return str(path)


SPOILT_STATE = {
    "cut off": '{"schema": 1, "backend": "net',
    "of another version": '{"schema": 2}',
    "a list": "[]",
    "without keys": '{"schema": 1}',
    "of an unknown backend": '{"schema": 1, "backend": "x", "spec": {}, "probe": null}',
    "with a spoilt specification": (
        '{"schema": 1, "backend": "netns", "created_at": 1, "probe": null, "spec": {"nodes": 2},'
        '"nodes": {"holder": {}, "nodes": [], "subnet": "198.18.0.0/15", "privilege": "none"}}'
    ),
    "no text": "\udcff",
}
