"""The command line: one module a command, which parses, calls one function of the library and prints.

Only typer and the standard library are imported up here: torch takes seconds, and `relograph --help` answers at once.
"""

from relograph.cli.app import main

__all__ = ["main"]
