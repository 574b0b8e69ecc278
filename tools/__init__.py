"""The front door's own code, and what looks after a checkout. Never part of the wheel.

front, verbs, environment, prerequisites, build, commands, errors: from a make word to a command.
They run before there is an environment, on the system's Python and its standard library alone, and
stay readable for Python 3.8, so that an old one gets a message. Everything else here runs inside
the environment. No package imports any of it.
"""
