"""Measurements of this server beside others, each a command that prints a table."""
