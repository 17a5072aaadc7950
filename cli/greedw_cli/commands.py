"""The subcommands of ``greedw``, and what every one of them does with errors."""

import io
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from greedw_cli import demo, exits, jobs, members, status, topology
from greedw_cli.console import print_line, report_error
from greedw_cli.daemon import STATE_DIR_HELP
from greedw_p2p.errors import ConfigError, DaemonError, GreedwError

app = typer.Typer(
    name="greedw",
    help="Train one model on a handful of unequal machines, with no server and no special node.",
    epilog=exits.EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"greedw {version('greedw-p2p')}")
        raise typer.Exit


@app.callback()
def _before_the_subcommand(
    context: typer.Context,
    *,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            metavar="DIR",
            envvar="GREEDW_STATE_DIR",
            show_default=False,
            help=STATE_DIR_HELP + " Every subcommand but demo takes it as well.",
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    context.obj = state_dir


app.command("demo")(demo.demo)
app.command("init")(members.init)
app.command("invite")(members.invite)
app.command("join")(members.join)
app.command("leave")(members.leave)
app.command("evict")(members.evict)
app.command("status")(status.status)
app.command("topology")(topology.topology)
app.command("train")(jobs.train)
app.command("jobs")(jobs.jobs)
app.command("stop")(jobs.stop)


def run() -> None:
    """Run one command and exit with its code; expected errors never show a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # Trees are drawn in box characters; a terminal that lacks them shows "?" and no traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except DaemonError as error:
        report_error(str(error), error.hint)
        sys.exit(error.exit_code)
    except ConfigError as error:
        report_error(str(error), error.hint)
        sys.exit(exits.FAILED)
    except GreedwError as error:
        report_error(str(error))
        sys.exit(exits.FAILED)
