"""The command `tf-sparse-dp`.

A command is a module with two functions: `add_arguments(parser)`, and
`run(arguments)`, which returns the exit code. Its docstring is its help.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

from tf_sparse_dp.cli import plan
from tf_sparse_dp.errors import PrivacyWarning
from tf_sparse_dp.version import __version__

COMMANDS = {"plan": plan}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name.

    Returns:
      The exit code: 0, or 2 for arguments that do not fit. Then one message is
      on stderr, and nothing on stdout.
    """
    parser = argparse.ArgumentParser(
        prog="tf-sparse-dp",
        description="Private training of recommenders: the arithmetic.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="command"
    )
    parsers = {}
    for name, command in COMMANDS.items():
        text = command.__doc__ or ""
        parsers[name] = commands.add_parser(
            name,
            help=text.partition("\n")[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(parsers[name])
    given = parser.parse_args(arguments)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PrivacyWarning)
        try:
            code = COMMANDS[given.command].run(given)
        except ValueError as error:
            parsers[given.command].error(str(error))
    for warning in caught:
        sys.stderr.write(f"tf-sparse-dp: warning: {warning.message}\n")
    return code
