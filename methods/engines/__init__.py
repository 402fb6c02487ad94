"""Engines: the reference engine, in this process,."""
