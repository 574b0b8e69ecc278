"""A lab of an ordinary user: no rights are needed, and nothing is left."""

import json

import pytest

from tests.live.host import eventually, host_network, processes_in
from tests.live.ordinary import ordinary_user

pytestmark = pytest.mark.netns

ORDINARY = """
import json, os, signal, sys
from cluster.lab import bring_up, open_lab, take_down
from cluster.links import change_links
from cluster.nodes import Making
from cluster.spec import load_cluster
from cluster.state import LabDirectory

def output(lab, number, *argv):
    process = lab.nodes.exec(lab.nodes.list()[number], argv)
    return process.communicate(timeout=30)[0].decode().strip()

bring_up(load_cluster("2x2"), making=Making("netns"), probe=False)
lab = open_lab()
limit = output(lab, 1, "tc", "qdisc", "show", "dev", "fab0")
change_links("default", "node1", {"inter_node": "50mbit"}, probe=False)
holder = LabDirectory.of("default").read()["nodes"]["holder"]
print(json.dumps({
    "uid": os.geteuid(),
    "inside": output(lab, 0, "id", "-u"),
    "address": output(lab, 1, "ip", "-o", "-4", "addr", "show", "dev", "fab0"),
    "limit": limit,
    "changed": output(lab, 1, "tc", "qdisc", "show", "dev", "fab0"),
    "congestion_control": lab.nodes.facts(lab.nodes.list()[0]).congestion_control,
    "holder": holder,
    "namespace": os.readlink(f"/proc/{holder['pid']}/ns/pid"),
}))
if sys.argv[1] == "down":
    take_down()
else:
    os.kill(holder["pid"], signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["down", "kill"])
def test_an_ordinary_user_needs_no_rights(end: str) -> None:
    before = host_network()
    with ordinary_user() as user:
        found = json.loads(user.run(ORDINARY, end))
        assert found["uid"] == user.uid != 0
        assert found["inside"] == "0"
        assert "198.18.0.11/15" in found["address"]
        assert "rate 200Mbit" in found["limit"]
        assert "rate 50Mbit" in found["changed"]
        assert found["congestion_control"] == "cubic"
        assert found["holder"]["user_namespace"] is True
        assert eventually(lambda: not processes_in(found["namespace"]))
        assert "is not up" in user.run(
            "from cluster.lab import *\ntry: open_lab()\nexcept Exception as e: print(e)"
        )
    assert host_network() == before
