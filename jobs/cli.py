"""The command `ddplab`, where it begins: Ctrl-C ends it without a traceback from its first line.

Imports nothing of ours before that is so. What is asked for is `jobs.verbs`' matter.
"""

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits; a user's error never shows a traceback."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:  # nothing is there yet that would need an orderly end
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_streams()
    from jobs.verbs import run_command

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_command(list(sys.argv[1:] if arguments is None else arguments)))


def _open_streams() -> None:
    """Closed standard streams (`>&-`) lead nowhere, instead of to the next file opened."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115


if __name__ == "__main__":
    main()
