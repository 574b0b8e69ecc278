"""A module whose import does not end, as that of a large library for a while."""

import time

time.sleep(600)
