"""`python -m tools.picture RUN...`: the README's picture, a bar for each run, as SVG on stdout.

Every length is read from the runs' summary.json; nothing is drawn that no run measured.
"""

import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, BAR_HEIGHT, GAP, TOP, LEFT, RIGHT = 880, 44, 26, 64, 170, 70
FONT = 'font-family="system-ui, sans-serif"'
# computing in quiet colours, waiting in one loud one
COLOURS = {
    "forward": "#b8c7d9",
    "backward": "#8fa6c1",
    "optimizer": "#d5dde7",
    "other": "#e9edf2",
    "waiting": "#e8432e",
}


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write("usage: python -m tools.picture RUN_FOLDER... > picture.svg\n")
        return 2
    summaries = [json.loads((Path(each) / "summary.json").read_text()) for each in arguments]
    sys.stdout.write(picture(summaries))
    return 0


def picture(summaries: Sequence[dict[str, Any]]) -> str:
    """Bars in the order given, all to one scale."""
    longest_s = max(sum(parts(summary).values()) for summary in summaries)
    pixels_per_s = (WIDTH - LEFT - RIGHT) / longest_s
    height = TOP + len(summaries) * (BAR_HEIGHT + GAP) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *legend(),
    ]
    for row, summary in enumerate(summaries):
        lines += bar(summary, TOP + row * (BAR_HEIGHT + GAP), pixels_per_s)
    return "\n".join([*lines, text(LEFT, height - 12, caption(summaries[0]), 13), "</svg>", ""])


def parts(summary: dict[str, Any]) -> dict[str, float]:
    """Seconds of the mean step over all ranks, by what they went into."""
    phases = summary["phase_seconds"]
    return {
        "forward": phases["forward"],
        "backward": phases["backward"],
        "waiting": phases["comm_exposed"],
        "optimizer": phases["optimizer"],
        "other": phases["data"] + phases["other"],
    }


def legend() -> list[str]:
    lines, x = [], LEFT
    words = {"waiting": "waiting for gradients", "other": "data, other"}
    for name in ("forward", "backward", "waiting", "optimizer", "other"):
        word = words.get(name, name)
        lines.append(f'<rect x="{x}" y="22" width="14" height="14" fill="{COLOURS[name]}"/>')
        lines.append(text(x + 20, 34, word, 14))
        x += 40 + 7 * len(word)
    return lines


def bar(summary: dict[str, Any], y: int, pixels_per_s: float) -> list[str]:
    middle = y + BAR_HEIGHT / 2 + 5
    lines = [text(LEFT - 14, middle, summary["job"], 16, anchor="end", weight="600")]
    x = float(LEFT)
    for name, seconds in parts(summary).items():
        width = seconds * pixels_per_s
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" '
            f'fill="{COLOURS[name]}"/>'
        )
        if width > 60:
            colour = "#ffffff" if name == "waiting" else "#22303f"
            label = f"{seconds * 1e3:.0f} ms"
            lines.append(text(x + width / 2, middle, label, 14, anchor="middle", colour=colour))
        x += width
    total = f"{sum(parts(summary).values()) * 1e3:.0f} ms"
    return [*lines, text(x + 8, middle, total, 15, weight="600")]


def caption(summary: dict[str, Any]) -> str:
    rate = summary["link"]["configured_bits_per_second"] / 1e6
    day = summary["run_id"][:8]
    computing = "paced computing" if summary["compute"] == "paced" else "real computing"
    return (
        f"mean step, {summary['nnodes']} nodes x {summary['nproc_per_node']} ranks, "
        f"{rate:g} Mbit/s between nodes, {computing}, {day[:4]}-{day[4:6]}-{day[6:]}"
    )


def text(
    x: float,
    y: float,
    words: str,
    size: int,
    anchor: str = "start",
    weight: str = "400",
    colour: str = "#22303f",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" fill="{colour}">{escape(words)}</text>'
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
