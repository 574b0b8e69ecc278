"""The verb collect: one run folder of what ranks left on machines that share no folder."""

import json
from pathlib import Path
from typing import Any

import click

from jobs.cli_lab import json_option


class Folder(click.ParamType):  # type: ignore[type-arg]
    """A folder's name, which may not be there yet."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if "\0" in str(value):
            self.fail(f"{value!r} names no folder: it holds a zero byte", param, ctx)
        try:
            Path(value).exists()
        except OSError as exc:  # a name that no file can have
            self.fail(f"{str(value)[:60]!r} names no folder: {exc.strerror}", param, ctx)
        return Path(value)


@click.command()
@click.argument("folders", nargs=-1, required=True, type=Folder())
@click.option("--out", required=True, type=Folder(), help="The run folder that is made.")
@json_option
def collect(folders: tuple[Path, ...], out: Path, as_json: bool) -> int:
    """Make one run folder of FOLDERS, which torchrun's ranks left on their machines."""
    from jobs.cli_run import exit_code, show_result
    from jobs.torchrun.gathering import collect as gather

    result = gather(folders, out)
    if as_json:
        click.echo(json.dumps(result.summary))
    else:
        show_result(result)
    return exit_code(result)
