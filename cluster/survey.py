"""All labs of this user at once: those that are up, that just come up, and that are found dead."""

from dataclasses import dataclass
from enum import StrEnum

from cluster import lab as labs
from cluster.errors import HostError, LabBusy, NoLab, StateRefused
from cluster.kept import Lab
from cluster.state import Activity, LabDirectory


class Condition(StrEnum):
    """How a lab is found."""

    UP = "up"
    COMING_UP = "coming_up"
    BUSY = "busy"
    """Another command is changing it or taking it down."""
    REMOVED = "removed"
    """It was dead; what it had left has just been removed."""
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Sighting:
    """One lab as it is found. `lab` is there where it is up; `note` says what else is to know."""

    name: str
    condition: Condition
    lab: Lab | None = None
    usage: Activity | None = None
    """What runs on its links."""
    worker: Activity | None = None
    """The process that changes it, brings it up or takes it down."""
    note: str | None = None
    fix: str | None = None


def survey() -> tuple[Sighting, ...]:
    """Every lab of this user, by name; what dead ones left is removed."""
    found = [sight(name) for name in LabDirectory.all_names()]
    return tuple(sighting for sighting in found if sighting is not None)


def sight(name: str) -> Sighting | None:
    """One lab; None where there is none. Never raises because of the state it is in."""
    directory = LabDirectory.of(name)
    there, was_up = directory.path.is_dir(), directory.name in LabDirectory.names()
    worker = directory.worker()
    try:
        lab = labs.open_lab(name)
    except LabBusy:
        condition = Condition.BUSY if was_up else Condition.COMING_UP
        return Sighting(name, condition, worker=directory.worker() or worker)
    except (StateRefused, HostError) as exc:  # HostError: its Docker engine does not answer, say
        fix = " or: ".join(exc.fix)
        note = ": ".join(filter(None, (exc.message, exc.seen)))
        return Sighting(name, Condition.UNREADABLE, note=note, fix=fix)
    except NoLab as exc:
        if worker is not None or not there:
            return None  # whoever worked on it has taken it away
        never = "it never came up: the command that made it was killed"
        return Sighting(name, Condition.REMOVED, note=exc.seen if was_up else never)
    return Sighting(name, Condition.UP, lab, directory.usage(), directory.worker())
