"""The verbs of `ddplab`, and the one place where errors become text and exit codes.

Verbs are imported when they are used, so that `--help` answers at once. What they do is in
`cli_lab` and `cli_run`. Exit codes: 0 what was asked happened, 1 it did not, 2 it was asked
wrongly, 130 a person stopped it.
"""

import json
import os
import sys
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from cluster.errors import ClusterError
from jobs.errors import JobError, RunStopped
from jobs.stopping import raising_stop_signals, undisturbed, who_stopped

FAILED, MISUSED, STOPPED = 1, 2, 130

# verb -> (module, one line for --help); the command is the attribute named like the verb
VERBS: dict[str, tuple[str, str]] = {
    "doctor": ("jobs.cli_doctor", "Try all that a lab needs; say what is missing and the fix."),
    "up": ("jobs.cli_lab", "Make a lab: nodes joined by links as slow as you ask, measured."),
    "status": ("jobs.cli_status", "Show your labs and what their links carry."),
    "probe": ("jobs.cli_lab", "Measure the links of the lab again."),
    "link": ("jobs.cli_link", "Change the links of the lab, also while a job runs."),
    "down": ("jobs.cli_lab", "Take the lab down."),
    "ray-up": ("jobs.cli_ray", "Start a Ray cluster inside the lab's nodes."),
    "ray-down": ("jobs.cli_ray", "End the Ray cluster inside the lab; the lab stays."),
    "run": ("jobs.cli_run", "Train a job on the lab and say what the network cost."),
    "compare": (
        "jobs.cli_compare",
        "Train several jobs in turn; say how many times as fast each is.",
    ),
    "scale": ("jobs.cli_scale", "Train at several numbers of nodes; see what each one adds."),
    "bench": ("jobs.cli_bench", "Time all-reduces side by side, without training."),
    "collect": (
        "jobs.cli_collect",
        "Make one run of what ranks left on several machines.",
    ),
    "predict": ("jobs.cli_predict", "Say what a step would cost on a cluster that you lack."),
    "proof": ("jobs.cli_proof", "Prove the gradients against one process; needs no lab."),
    "runs": ("jobs.cli_run", "List all runs."),
    "runs-clean": ("jobs.cli_run", "Remove all runs but the last ones."),
}


class CommandLineError(JobError):
    """The command line asks for something that does not exist."""

    kind = "usage"


class LazyGroup(click.Group):
    """Knows its verbs by name and line; imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in VERBS:
            return None
        module = import_module(VERBS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = get_close_matches(args[0], VERBS, n=1)
            raise CommandLineError(
                f"{args[0]!r} is no verb",
                rule=f"verbs are {', '.join(VERBS)}",
                fix=f"ddplab {near[0]}" if near else "ddplab --help",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="ddplab")
@click.pass_context
def ddplab(ctx: click.Context) -> None:
    """A small cluster on your own machine that shows where a training step spends its time."""
    if ctx.invoked_subcommand is None:
        verbs = f"verbs are {', '.join(VERBS)}"
        raise CommandLineError("what is to be done?", rule=verbs, fix="ddplab --help")


def run_command(asked: list[str]) -> int:
    """Does what was asked and returns the exit code; a user's error never shows a traceback."""
    as_json = "--json" in asked
    try:
        with raising_stop_signals():
            return _attempt(asked, as_json)
    except KeyboardInterrupt as exc:
        return _tell(RunStopped(f"stopped by {who_stopped(exc)}"), as_json, STOPPED)


def _attempt(asked: list[str], as_json: bool) -> int:
    try:
        _require_working_folder()
        code = ddplab.main(args=asked, prog_name="ddplab", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as exc:
        return _tell(_usage(exc), as_json, MISUSED)
    except CommandLineError as exc:
        return _tell(exc, as_json, MISUSED)
    except RunStopped as exc:
        return _tell(exc, as_json, STOPPED)
    except (ClusterError, JobError) as exc:
        return _tell(exc, as_json, FAILED)
    except click.Abort as exc:
        raise KeyboardInterrupt from exc.__cause__
    except BrokenPipeError:  # whoever read us has seen enough
        _close_output()
        return FAILED
    except OSError as exc:
        if exc.filename is None:
            _close_output()
        where, why = exc.filename or "standard output", exc.strerror or str(exc)
        fix = "look at the permissions, and at the room on the disk"
        return _tell(JobError(f"{where}: {why}", fix=fix), as_json and bool(exc.filename), FAILED)


def _close_output() -> None:
    """What standard output does not take is not tried again at the end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _require_working_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise CommandLineError(
            "the folder you are in is gone", rule="runs are kept below it", fix="cd .."
        ) from None


def _usage(exc: click.ClickException) -> CommandLineError:
    context = exc.ctx if isinstance(exc, click.UsageError) else None
    path = context.command_path if context else "ddplab"
    if isinstance(exc, click.NoSuchOption) and context is not None:
        known = [name for option in context.command.params for name in option.opts]
        options = [name for name in known if name.startswith("--")]
        near = get_close_matches(exc.option_name, options, n=1)
        return CommandLineError(
            f"{exc.option_name!r} is no option of {path}",
            rule=f"options are {', '.join(options)}",
            fix=f"{path} {near[0]}" if near else f"{path} --help",
        )
    return CommandLineError(exc.format_message(), rule=_rule(exc, context), fix=f"{path} --help")


def _rule(exc: click.ClickException, context: click.Context | None) -> str:
    """What the option that is wrong means, or how the verb is called."""
    option = exc.param if isinstance(exc, click.BadParameter) else None
    if isinstance(option, click.Option) and option.help:
        return f"{option.opts[0]}: {option.help}"
    return " ".join(context.get_usage().split()) if context else "options are as --help shows them"


def _tell(error: Any, as_json: bool, code: int) -> int:
    try:
        with undisturbed():
            _show(error, as_json)
    except OSError:  # nobody is there any more to be told
        _close_output()
    return code


def _show(error: Any, as_json: bool) -> None:
    from jobs.report.errors import error_screen
    from jobs.report.terminal import error_console, show
    from jobs.summary import SCHEMA, error_json

    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "error": error_json(error)}))
    else:
        console = error_console()
        show(console, error_screen(error, console.width))
