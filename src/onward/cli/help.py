"""What `--help` prints: options in groups, as plain text."""

from __future__ import annotations

import click
from typer.core import TyperArgument, TyperCommand


class Grouped(TyperCommand):
    """A command whose options are listed by what they are about."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
                group = getattr(parameter, "rich_help_panel", None) or usual
                # typer escapes brackets for rich, which does not print this.
                groups.setdefault(group, []).append((record[0], record[1].replace("\\[", "[")))
        for name, records in sorted(groups.items(), key=lambda item: (item[0] == "Options", item[0] != "Arguments")):
            with formatter.section(name):
                formatter.write_dl(records)
