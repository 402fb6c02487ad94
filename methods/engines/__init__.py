"""Engines: the built-in one, in this process, and those that run in servers of other environments."""
