"""The command line's reference, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import click
from tables import cell, code, table

from airflow_s3commit.cli.app import program
from airflow_s3commit.cli.command import section_of
from airflow_s3commit.cli.output import EXIT_CODES_HELP

#: Headings of the options that every command has.
SHARED = ("Store", "Output")


def commands() -> str:
    """Return every command: what it does, its arguments and its own options, examples."""
    return "\n".join(_command(name, command) for name, command in program.commands.items())


def shared_options() -> str:
    """Return the options that every command has."""
    some = next(iter(program.commands.values()))
    context = click.Context(some, info_name=some.name, show_default=True)
    return "\n".join(
        f"**{title}**\n\n{table(('option', 'meaning'), _rows(context, _of(context, (title,))))}"
        for title in SHARED
    )


def exit_codes() -> str:
    """Return what the exit codes mean."""
    return table(("code", "meaning"), ((code(number), cell(meaning)) for number, meaning in EXIT_CODES_HELP))


def _command(name: str, command: click.Command) -> str:
    parent = click.Context(program, info_name="s3commit", show_default=True)
    context = click.Context(command, parent=parent, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    own = [p for p in command.get_params(context) if section_of(p) not in SHARED and p.name != "help"]
    arguments = [param for param in own if isinstance(param, click.Argument)]
    options = [param for param in own if isinstance(param, click.Option)]
    parts = [f"## s3commit {name} {{#{name}}}\n", f"```text\ns3commit {name} {usage}\n```\n"]
    parts.append(inspect.cleandoc(command.help or "").replace("``", "`") + "\n")
    if arguments:
        parts.append(table(("argument", "meaning"), _rows(context, arguments)))
    if options:
        parts.append(table(("option", "meaning"), _rows(context, options)))
    parts.append(f"```console\n{_examples(command)}\n```\n")
    return "\n".join(parts)


def _of(context: click.Context, titles: Iterable[str]) -> list[click.Parameter]:
    wanted = set(titles)
    return [param for param in context.command.get_params(context) if section_of(param) in wanted]


def _rows(context: click.Context, params: Iterable[click.Parameter]) -> Iterable[tuple[str, str]]:
    for param in params:
        record = param.get_help_record(context)
        if record is not None:
            yield code(record[0]), cell(record[1])


def _examples(command: click.Command) -> str:
    lines = (command.epilog or "").replace("\b", "").strip().splitlines()
    return inspect.cleandoc("\n".join(lines[1:]))
