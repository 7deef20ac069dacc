"""A report as Markdown, with figures beside it."""

import re

from treefold.sweeps.reporting.document import Report
from treefold.sweeps.reporting.tables import Cell, Table


def to_markdown(report: Report) -> str:
    """Write the report."""
    parts = [f"# {escape(report.title)}", *map(escape, report.introduction)]
    parts.append("\n".join(f"- {escape(name)}: {escape(value)}" for name, value in report.facts))
    parts.append(f"**{escape(report.verdict)}**")
    for table in report.tables:
        parts += [f"## {escape(table.title)}", escape(table.caption), _table(table)]
        parts += ["\n".join(f"- {escape(note)}" for note in table.notes)] if table.notes else []
    parts += ["## Figures"] if report.figures else []
    for figure in report.figures:
        parts += [
            f"### {escape(figure.title)}",
            f"![{escape(figure.description)}]({figure.name}.png)",
            escape(figure.caption),
        ]
    if report.remarks:
        parts += ["## Remarks", "\n".join(f"- {escape(remark)}" for remark in report.remarks)]
    parts += [
        "## Versions and data",
        "\n".join(f"- {escape(name)}: {escape(value)}" for name, value in report.versions),
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Return text that Markdown shows as it is.

    >>> print(escape("a|b_c"))
    a\|b\_c
    """
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _table(table: Table) -> str:
    names = [escape(cell.text) for cell in table.head[-1]]
    if len(table.head) == 2:  # Markdown has one row of heads
        over = [cell.text for cell in table.head[0] for _ in range(cell.span)]
        names = [f"{escape(upper)}<br>{name}" if upper else name for upper, name in zip(over, names, strict=True)]
    lines = [_line(names), _line(["---", *["--:"] * (len(names) - 1)])]
    lines += [_line([_cell(cell) for cell in row]) for row in table.rows]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    text = f"**{escape(cell.text)}**" if cell.bold and cell.text else escape(cell.text)
    text += f" {cell.comparison()}" if cell.comparison() else ""
    return text + (f"<br>{escape(', '.join(cell.details))}" if cell.details else "")
