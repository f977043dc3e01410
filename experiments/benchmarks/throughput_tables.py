"""The throughput benchmark's results as Markdown."""


def table(found: dict) -> str:
    """What was measured on one device: the machine, then a table for every part."""
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    absent = f"; not installed: {', '.join(found['missing'])}" if found.get("missing") else ""
    lines = [machine + absent]
    if "pytorch" in found:
        lines += ["", *_pytorch_table(found["pytorch"])]
    if "host" in found:
        lines += ["", *_host_table(found["host"])]
    return "\n".join(lines)


def _pytorch_table(rows: list[dict]) -> list[str]:
    lines = _head(
        "network, batch", "dtype", "way", "ms a step", "median", "processor ms", "images/s", "times", "MB", "of peak"
    )
    for row in rows:
        for way, seconds in row["seconds"].items():
            median, megabytes = row["median seconds"][way], row["megabytes"].get(way)
            times = "" if way == "ours" else f"{seconds / row['seconds']['ours']:.2f}"
            peak = f"{100 * row['of peak'][way]:.1f}%" if "of peak" in row else ""
            cells = (f"{row['network']}, {row['batch']}", row["dtype"], way, f"{1e3 * seconds:.4g}")
            cells += (f"{1e3 * median:.4g}", f"{1e3 * row['processor seconds'][way]:.4g}")
            cells += (f"{row['batch'] / seconds:,.4g}", times)
            lines.append(_line(*cells, "" if megabytes is None else f"{megabytes:,.0f}", peak))
        for way, why in row["failed"].items():
            lines.append(_line(f"{row['network']}, {row['batch']}", row["dtype"], f"{way}: {why}", *[""] * 7))
    return lines


def _host_table(rows: list[dict]) -> list[str]:
    heads = ("ms a step", "spec kept", "batch ready", "more than kept: least", "median", "more than ready: least")
    lines = _head("network, batch", "dtype", *heads, "median", "host ms: batch spec", "dispatch", "metrics")
    for row in rows:
        seconds, cells = row["seconds"], [f"{row['network']}, {row['batch']}", row["dtype"]]
        cells += [f"{1e3 * seconds[way]:.4g}" for way in ("fresh", "kept", "ready")]
        for way in ("kept", "ready"):
            cells += [_more(seconds["fresh"] / seconds[way]), _more(row["median of rounds"][way])]
        lines.append(_line(*cells, *(f"{value:.3g}" for value in row["host milliseconds"].values())))
    return lines


def _more(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"


def _head(*names: str) -> list[str]:
    return [_line(*names), "|---" * len(names) + "|"]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
