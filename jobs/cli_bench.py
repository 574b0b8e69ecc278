"""The verb bench: all-reduces side by side, without training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobs.cli_lab import MOST, json_option
from jobs.cli_site import SiteAsked, opened_site, site_options
from jobs.verbs import CommandLineError

if TYPE_CHECKING:
    from cluster.site import Site
    from jobs.bench.asked import BenchSpec
    from jobs.bench.floors import Checked
    from jobs.bench.launcher import Found
    from jobs.bench.rows import Row

RUNS = Path("runs")
FAILED = 1
ALLREDUCE = "allreduce"
SAID_BY_CHECK = (
    *("sizes", "minbytes", "maxbytes", "stepfactor"),
    *("algorithms", "dtype", "ring_order", "placement"),
)


@click.command()
@click.argument("what")
@click.option("--sizes", help='Of the buffer on every rank: "64KiB 4MiB 32MB"; K, M, G as KiB...')
@click.option("--minbytes", help="Instead: the smallest size, up to --maxbytes.")
@click.option("--maxbytes", help="The largest size.")
@click.option("--stepfactor", type=float, help="Each size is so many times the one before: 2.")
@click.option("--iters", type=click.IntRange(1, MOST), help="Counted rounds: 10.")
@click.option("--warmup-iters", type=click.IntRange(0, MOST), help="Rounds before them: 2.")
@click.option("--algorithms", help='"native ring hierarchical", or others, or my.py:build.')
@click.option("--dtype", help="Of the elements: float32.")
@click.option("--ring-order", help='Of ring: contiguous, interleaved, shuffled, or several: "...".')
@click.option("--placement", help="Of the ranks: contiguous, interleaved, or both.")
@click.option("--busbw", is_flag=True, help="Also the bus bandwidth of nccl-tests.")
@click.option("--check", is_flag=True, help="Exit code 1 where a figure is under its floor.")
@click.option("--rate", help="Refuse to run unless the lab's links have this rate.")
@site_options
@click.option("--lab", "lab_name", help="Name of the lab.")
@json_option
def bench(what: str, busbw: bool, check: bool, as_json: bool, **asked: Any) -> int:
    """Time all-reduces (WHAT is allreduce) on the lab: algorithms in turn, every sum checked."""
    from jobs.cli_run import require_rate

    if what != ALLREDUCE:
        raise CommandLineError(
            f"bench {what[:40]!r}", rule=f"what is timed is {ALLREDUCE}", fix="bench allreduce"
        )
    made: list[BenchSpec] = []

    def look(site: "Site") -> None:
        require_rate(site, asked["rate"], "bench")
        made.append(_spec(asked, check, site))

    _require_alone(asked, check)
    where = SiteAsked.of(asked["lab_name"], asked)
    _parsed(asked)
    with opened_site(where, look, as_json) as site:
        return _tell(made[0], _run(made[0], site, as_json), site, busbw, check, as_json)


def _require_alone(asked: Mapping[str, Any], check: bool) -> None:
    """Raises CommandLineError for options that say the same in two ways."""
    given = [name for name in SAID_BY_CHECK if asked[name] is not None]
    if check and given:
        raise CommandLineError(
            f"CHECK=1 with {', '.join(name.upper() for name in given)}",
            rule="the floors say what is timed for them",
            fix="leave them out, or CHECK",
        )
    ends = [name for name in ("minbytes", "maxbytes") if asked[name] is not None]
    if asked["sizes"] is not None and (ends or asked["stepfactor"] is not None):
        raise CommandLineError(
            "SIZES with MINBYTES, MAXBYTES or STEPFACTOR",
            rule="sizes are listed, or a range of them is given",
            fix='SIZES="4MiB 16MiB", or MINBYTES=64KiB MAXBYTES=16MiB STEPFACTOR=4',
        )
    if len(ends) == 1 or (asked["stepfactor"] is not None and not ends):
        raise CommandLineError(
            f"{(ends or ['stepfactor'])[0].upper()} alone",
            rule="a range has a smallest and a largest size",
            fix="MINBYTES=64KiB MAXBYTES=16MiB",
        )


def _parsed(asked: Mapping[str, Any]) -> "tuple[tuple[int, ...] | None, dict[str, Any]]":
    """Sizes, None where they are the usual ones, and the rest of what is asked for, checked."""
    from jobs.bench.asked import (
        DEFAULT_ALGORITHMS,
        ROUNDS,
        WARMUP_ROUNDS,
        contenders,
        require_dtype,
    )

    words = {
        name: None if asked[name] is None else asked[name].replace(",", " ").split()
        for name in ("algorithms", "ring_order", "placement")
    }
    rest = {
        "contenders": contenders(
            DEFAULT_ALGORITHMS if words["algorithms"] is None else words["algorithms"],
            ["contiguous"] if words["ring_order"] is None else words["ring_order"],
            ["contiguous"] if words["placement"] is None else words["placement"],
        ),
        "dtype": require_dtype("float32" if asked["dtype"] is None else asked["dtype"]),
        "rounds": asked["iters"] or ROUNDS,
        "warmup_rounds": WARMUP_ROUNDS if asked["warmup_iters"] is None else asked["warmup_iters"],
    }
    return _sizes(asked), rest


def _sizes(asked: Mapping[str, Any]) -> tuple[int, ...] | None:
    from jobs.bench.sizes import parse_size, parse_sizes, size_range

    if asked["sizes"] is not None:
        return parse_sizes(asked["sizes"])
    if asked["minbytes"] is None:
        return None
    factor = 2.0 if asked["stepfactor"] is None else asked["stepfactor"]
    least = parse_size(asked["minbytes"], "MINBYTES")
    return size_range(least, parse_size(asked["maxbytes"], "MAXBYTES"), factor)


def _spec(asked: Mapping[str, Any], check: bool, site: "Site") -> "BenchSpec":
    """What is timed on this site. Raises BenchError, JobSpecError where it cannot be."""
    from jobs.bench.asked import BenchSpec, check_fits, job_of
    from jobs.bench.estimate import default_sizes
    from jobs.bench.floors import check_spec
    from jobs.owncode import check_own_code
    from jobs.spec import node_of

    sizes, rest = _parsed(asked)
    spec = site.spec
    if check:
        found = check_spec(spec, rest["rounds"], rest["warmup_rounds"])
    else:
        rounds = rest["rounds"] + rest["warmup_rounds"]
        sizes = sizes or default_sizes(rest["contenders"], rounds, site)
        found = BenchSpec(sizes_bytes=sizes, **rest)
    for each in found.contenders:
        places = node_of(each.placement, spec.nodes, spec.ranks_per_node)
        check_own_code(job_of(each).ddp, places)
    facts = [site.nodes.facts(node) for node in site.nodes.list()]
    check_fits(found, spec.nodes, spec.ranks_per_node, facts)
    return found


def _run(spec: "BenchSpec", site: "Site", as_json: bool) -> "Found":
    from jobs.bench.launcher import run_bench
    from jobs.report.bench_live import LiveBench
    from jobs.report.bench_screen import bench_header
    from jobs.report.terminal import error_console, output_console
    from jobs.runinfo import shared_by_ranks

    console = error_console() if as_json else output_console()
    header = bench_header(spec, site, shared_by_ranks(site), console.width)
    num_ranks = site.spec.nodes * site.spec.ranks_per_node
    return run_bench(spec, site, RUNS, LiveBench(console, spec, num_ranks, header))


def _tell(
    spec: "BenchSpec", found: "Found", site: "Site", busbw: bool, check: bool, as_json: bool
) -> int:
    """The table, on the screen or as JSON; 1 where a sum is wrong or a figure under its floor."""
    from jobs.bench.files import bench_json, write_bench
    from jobs.bench.floors import check as held
    from jobs.bench.rows import Shape, rows_of
    from jobs.report.bench_screen import closing_screen, next_lines
    from jobs.report.terminal import output_console, show

    rows = rows_of(spec, Shape(site.spec.nodes, site.spec.ranks_per_node), found)
    checked = held(site.spec, rows) if check else None
    folder = write_bench(RUNS, site, bench_json(spec, site, found, rows, checked), rows)
    if as_json:
        click.echo(json.dumps(folder.read("bench.json")))
    else:
        console = output_console()
        show(console, closing_screen(rows, checked, busbw, console.width))
        show(console, next_lines(rows, checked, folder.run_id, _options(site), console.width))
    return _code(rows, checked)


def _code(rows: "list[Row]", checked: "Checked | None") -> int:
    wrong = any(row.wrong for row in rows)
    return FAILED if wrong or (checked is not None and not checked.ok) else 0


def _options(site: "Site") -> str:
    """What makes a command run where this one did."""
    from jobs.report.site_words import place_options
    from jobs.runinfo import lab_json

    return place_options({"lab": lab_json(site), "nproc_per_node": site.spec.ranks_per_node})
