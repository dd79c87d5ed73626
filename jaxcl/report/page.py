"""report.html: one page with results, curves, protocol and config, which needs no other file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from jaxcl.report.curves import curve
from jaxcl.report.files import plain, replace
from jaxcl.report.table import CAPTION_COLUMNS, COLUMNS, accuracies, figures, protocol, retrieval, title, verdict
from jaxcl.report.words import percent

REPORT = "report.html"


def write_report(
    workdir: Path, summary: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> None:
    """Write report.html.

    Args:
        workdir: existing folder of the run.
        summary: as in summary.json.
        metrics: as from `read_metrics`.
        config: resolved settings.
    """
    names = sorted({name for row in metrics for name in row} - {"step"})
    scores = [name for name in names if name.endswith("top1")]
    while_training = f"Accuracy while training ({', '.join(scores)})"
    memory = [name for name in names if name.endswith("_bytes") or "_bytes_" in name]
    main = {"Loss": ["loss"], "Learning rate": ["learning_rate"], while_training: scores, "Memory in use": memory}
    shown = {name for group in main.values() for name in group}
    rest = {name.replace("_", " "): [name] for name in names if name not in shown}
    page = _PAGE.substitute(
        title=escape(title(summary)),
        verdict=escape(verdict(summary)),
        accuracies=_table(COLUMNS, accuracies(summary)),
        captions=_table(CAPTION_COLUMNS, retrieval(summary)),
        curves=_curves(metrics, main),
        figures=_pairs(figures(summary)),
        protocol=_pairs(protocol(summary)),
        rest=_curves(metrics, rest),
        config=escape(json.dumps(plain(config), indent=2, ensure_ascii=False)),
    )
    replace(Path(workdir) / REPORT, page)


def _table(columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]]) -> str:
    """A table of accuracies; nothing without rows."""
    if not rows:
        return ""
    heads = "".join(f"<th scope=col>{escape(name)}</th>" for name in columns)
    body = "".join(_accuracy_row(name, values) for name, values in rows)
    return (
        f'<div class="card scroll"><table><thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _accuracy_row(name: str, values: Sequence[float | None]) -> str:
    """One row of the result: numbers over thin bars."""
    cells = "".join(
        f'<td>{escape(percent(value))}<div class=bar style="width:{100 * min(max(value or 0, 0), 1):.1f}%"></div></td>'
        for value in values
    )
    return f"<tr><th scope=row>{escape(name)}</th>{cells}</tr>"


def _pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values as a definition list."""
    return "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)


def _curves(metrics: Sequence[Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> str:
    """A figure for each group that has something to draw."""
    drawn = {name: curve(metrics, members) for name, members in groups.items() if members}
    return "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{image}</figure>" for name, image in drawn.items() if image
    )


_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --page: #fbfbfa; --card: #fff; --ink: #1c1f24; --soft: #656b75; --line: #e3e5e8;
  --accent: #2f7de1; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --card: #1c1f25; --ink: #e6e8ec; --soft: #9aa1ad;
  --line: #31353d; --accent: #5b9cf0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; }
h2 { margin: 2.2rem 0 .7rem; font-size: 1.1rem; }
.verdict { margin: .4rem 0 1.4rem; color: var(--soft); }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.2rem; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
.card + .card { margin-top: 1rem; }
th, td { padding: .5rem .7rem; text-align: right; white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; border-bottom: 1px solid var(--line); }
th[scope=row] { text-align: left; font-weight: 500; }
td { width: 19%; }
td:nth-of-type(1) { font-weight: 650; }
.bar { height: 4px; margin: .15rem 0 0 auto; border-radius: 2px; background: var(--soft); opacity: .5; }
td:nth-of-type(1) .bar { background: var(--accent); opacity: 1; }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
figure { margin: 0; }
figcaption { font-weight: 500; margin-bottom: .4rem; }
svg { display: block; width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.2rem; margin: 0; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
details { margin-top: 1rem; }
summary { cursor: pointer; padding: .4rem 0; font-weight: 500; }
pre { margin: 0; overflow-x: auto; font: 13px/1.45 ui-monospace, monospace; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="verdict">$verdict</p>
$accuracies
$captions
<h2>Training</h2>
<div class="grid">$curves</div>
<h2>Run</h2>
<div class="card"><dl>$figures</dl></div>
<h2>Protocol</h2>
<div class="card"><dl>$protocol</dl></div>
<details><summary>Everything that was logged</summary><div class="grid">$rest</div></details>
<details><summary>Config</summary><div class="card"><pre>$config</pre></div></details>
</body>
</html>
""")
