#!/bin/sh
# Finds a Python and hands over to tools/front.py. Owns nothing else: the environment's own Python
# when there is one (it starts fastest), else the first one that works.
# -E -s -S: neither the caller's PYTHON* variables nor installed packages take part.

if [ -x .venv/bin/python ]; then
    exec .venv/bin/python -E -s -S -m tools.front "$1"
fi
for python in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
    if "$python" -E -s -S -c '' >/dev/null 2>&1; then
        exec "$python" -E -s -S -m tools.front "$1"
    fi
done

packages="python3 python3-venv"
PATH="$PATH:/usr/sbin:/sbin"
{ command -v ip && command -v tc; } >/dev/null || packages="$packages iproute2"
{ command -v unshare && command -v nsenter; } >/dev/null || packages="$packages util-linux"
{
    echo 'ddplab: there is no Python here.'
    echo
    echo '  seen    no python3 that starts, on the search path or in /usr/bin'
    echo '  rule    ddplab needs Python 3.11 or newer'
    echo "  fix     sudo apt-get install $packages"
} >&2
exit 1
