"""Why this machine does not make a private network, and what helps: pure, from facts."""

from collections.abc import Mapping, Sequence

from cluster.errors import NamespacesRefused

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CLONE = "kernel.unprivileged_userns_clone"
MAX_NAMESPACES = "user.max_user_namespaces"
SETTINGS = (APPARMOR, CLONE, MAX_NAMESPACES)
RULE = "to create network cards in a namespace of our own; yours are not touched"


def setting_path(name: str) -> str:
    return "/proc/sys/" + name.replace(".", "/")


def explain_refusal(
    seen: str, user: str, is_root: bool, settings: Mapping[str, str], others: Sequence[str] = ()
) -> NamespacesRefused:
    """The error for a refused namespace.

    `settings` are kernel settings as read; `others` are the fixes that other backends offer.
    """
    sudo = f"make cluster-up PRIVILEGE=sudo       asks for your password; training runs as {user}"
    if is_root:
        return NamespacesRefused(
            "root may not make a private network here: this machine is itself a container",
            RULE,
            ("start the container with --privileged, or run this outside of it", *others),
            seen=f'"{seen}"',
        )
    if settings.get(APPARMOR) == "1":
        headline = f'this Ubuntu does not let user "{user}" make a private network.'
        value = f"{APPARMOR} = 1 (the default since Ubuntu 24.04)"
        switch = f"sudo sysctl -w {APPARMOR}=0     until the next reboot"
    elif settings.get(CLONE) == "0":
        headline = f'this kernel does not let user "{user}" make a private network.'
        value, switch = f"{CLONE} = 0", f"sudo sysctl -w {CLONE}=1     until the next reboot"
    elif settings.get(MAX_NAMESPACES) == "0":
        headline = f'this machine does not let user "{user}" make a private network.'
        value = f"{MAX_NAMESPACES} = 0"
        switch = f"sudo sysctl -w {MAX_NAMESPACES}=10000     until the next reboot"
    else:
        headline = f'this machine does not let user "{user}" make a private network.'
        value, switch = "no kernel setting that we know forbids it: a container may", None
    fixes = [fix for fix in (switch, sudo, *others) if fix]
    return NamespacesRefused(headline, RULE, fixes, seen=f'"{seen}"; {value}')
