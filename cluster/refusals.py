"""Why this machine does not make a private network, and what helps: pure, from facts."""

from collections.abc import Mapping, Sequence

from cluster.errors import NamespacesRefused

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CLONE = "kernel.unprivileged_userns_clone"
MAX_NAMESPACES = "user.max_user_namespaces"
_KINDS = ("net", "mnt", "pid", "uts", "ipc")
LIMITS = (MAX_NAMESPACES, *(f"user.max_{kind}_namespaces" for kind in _KINDS))
SETTINGS = (APPARMOR, CLONE, *LIMITS)
RULE = "to create network cards in a namespace of our own; yours are not touched"
USED_UP = "No space left on device"
"""What the kernel answers where a limit on the number of namespaces is reached."""
UNTIL_REBOOT = "     until the next reboot"


def setting_path(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")


def explain_refusal(
    seen: str, user: str, is_root: bool, settings: Mapping[str, str], others: Sequence[str] = ()
) -> NamespacesRefused:
    """The error for a refused namespace.

    `settings` are kernel settings as read; `others` are the fixes that other backends offer.
    """
    limit = _reached(seen, is_root, settings)
    if is_root and limit is None:
        return NamespacesRefused(
            "root may not make a private network here: this machine is itself a container",
            RULE,
            ("start the container with --privileged, or run this outside", *others),
            seen=f'"{seen}"',
        )
    sudo = f"make cluster-up PRIVILEGE=sudo       asks for your password; training runs as {user}"
    headline = f'this machine does not let user "{user}" make a private network.'
    if settings.get(APPARMOR) == "1" and limit is None:
        headline = f'this Ubuntu does not let user "{user}" make a private network.'
        value = f"{APPARMOR} = 1 (the default since Ubuntu 24.04)"
        switch: str | None = f"sudo sysctl -w {APPARMOR}=0{UNTIL_REBOOT}"
    elif settings.get(CLONE) == "0" and limit is None:
        headline = f'this kernel does not let user "{user}" make a private network.'
        value, switch = f"{CLONE} = 0", f"sudo sysctl -w {CLONE}=1{UNTIL_REBOOT}"
    elif limit is not None:
        value = f"{limit} = {settings[limit]}"
        switch = f"{'' if is_root else 'sudo '}sysctl -w {limit}=10000{UNTIL_REBOOT}"
    else:
        value, switch = "no kernel setting that we know forbids it: a container may", None
    by_sudo = sudo if limit is None else None  # root's namespaces count as well
    fixes = [fix for fix in (switch, by_sudo, *others) if fix]
    return NamespacesRefused(headline, RULE, fixes, seen=f'"{seen}"; {value}')


def _reached(seen: str, is_root: bool, settings: Mapping[str, str]) -> str | None:
    """The limit on the number of namespaces that stands in the way; root needs none of users."""
    known = [name for name in LIMITS if name in settings]
    ours = [name for name in known if not (is_root and name == MAX_NAMESPACES)]
    if zero := [name for name in ours if settings[name] == "0"]:
        return zero[0]
    least = min(ours, key=lambda name: int(settings[name]), default=None)
    return least if USED_UP in seen else None
