"""The throughput benchmark's results as Markdown."""

from experiments.writing import markdown


def table(found: dict) -> str:
    """What was measured on one device: the machine, then a table for every part."""
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    absent = f"; not installed: {', '.join(found['missing'])}" if found.get("missing") else ""
    lines = [machine + absent]
    if "pytorch" in found:
        lines += ["", _pytorch_table(found["pytorch"])]
    if "host" in found:
        lines += ["", _host_table(found["host"])]
    return "\n".join(lines)


def _pytorch_table(rows: list[dict]) -> str:
    heads = ("network, batch", "dtype", "way", "ms a step", "median", "processor ms", "images/s", "times", "MB")
    lines = []
    for row in rows:
        for way, seconds in row["seconds"].items():
            median, megabytes = row["median seconds"][way], row["megabytes"].get(way)
            times = "" if way == "ours" else f"{seconds / row['seconds']['ours']:.2f}"
            peak = f"{100 * row['of peak'][way]:.1f}%" if "of peak" in row else ""
            cells = (f"{row['network']}, {row['batch']}", row["dtype"], way, f"{1e3 * seconds:.4g}")
            cells += (f"{1e3 * median:.4g}", f"{1e3 * row['processor seconds'][way]:.4g}")
            cells += (f"{row['batch'] / seconds:,.4g}", times)
            lines.append([*cells, "" if megabytes is None else f"{megabytes:,.0f}", peak])
        for way, why in row["failed"].items():
            lines.append([f"{row['network']}, {row['batch']}", row["dtype"], f"{way}: {why}", *[""] * 7])
    return markdown((*heads, "of peak"), lines)


def _host_table(rows: list[dict]) -> str:
    heads = ("ms a step", "spec kept", "batch ready", "more than kept: least", "median", "more than ready: least")
    lines = []
    for row in rows:
        seconds, cells = row["seconds"], [f"{row['network']}, {row['batch']}", row["dtype"]]
        cells += [f"{1e3 * seconds[way]:.4g}" for way in ("fresh", "kept", "ready")]
        for way in ("kept", "ready"):
            cells += [_more(seconds["fresh"] / seconds[way]), _more(row["median of rounds"][way])]
        lines.append([*cells, *(f"{value:.3g}" for value in row["host milliseconds"].values())])
    return markdown(("network, batch", "dtype", *heads, "median", "host ms: batch spec", "dispatch", "metrics"), lines)


def _more(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}%"
