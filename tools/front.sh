#!/bin/sh
# Finds a Python and hands over to tools/front.py. Owns nothing else: the environment's own Python
# when there is one (it starts fastest), else the first one that works and can read it (3.7).
# -E -s -S: neither the caller's PYTHON* variables nor installed packages take part.

for python in .venv/bin/python \
    python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -E -s -S -c 'from __future__ import annotations' >/dev/null 2>&1; then
        exec "$python" -E -s -S -m tools.front "$1"
    fi
done

packages="python3 python3-venv"
rpms="python3"
PATH="$PATH:/usr/sbin:/sbin"
{ command -v ip && command -v tc; } >/dev/null ||
    { packages="$packages iproute2" && rpms="$rpms iproute iproute-tc"; }
{ command -v unshare && command -v nsenter; } >/dev/null ||
    { packages="$packages util-linux" && rpms="$rpms util-linux"; }
{
    echo 'ddplab: there is no Python here that can be used.'
    echo
    echo '  seen    no python3 from 3.7 on that starts, on the search path or in /usr/bin'
    echo '  rule    ddplab needs Python 3.11 or newer'
    if command -v dnf >/dev/null && ! command -v apt-get >/dev/null; then
        echo "  fix     sudo dnf install $rpms"
    else
        echo "  fix     sudo apt-get install $packages"
    fi
} >&2
exit 1
