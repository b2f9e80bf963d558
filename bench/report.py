"""From single runs to medians, ratios and Markdown."""

import dataclasses
import statistics
import sys

EXPLANATION = """\
**How to read this.** *wall* is the client's, from its start to its end; for fio the figure is operations a second without
fio's start. *CPU* is user and kernel time of the client and, from the client's start to its own end, of the server: all
processes. *RSS* is the peak of resident memory of the server and of the client, shared pages included. *× best peer* is
how many times better than the best peer of the row, in wall (or operations a second) and in CPU; the best peer may be another
one in each. *of the limit* compares with the simplest loop that does only the unavoidable (limits.c): 50 % means
half as fast. For fio the limit is the same fio against a server that does next to nothing. Pairs *for information* are neither
peers nor us. All run in turn, in each of the rounds; servers are started afresh each time.

**Caveats.** Files are in tmpfs, but for the works that name a disk (`--disk`), and sockets are local: no network is measured.
Rows marked *before* are an older binary of ours (`--before`). On a virtual machine memory
that is touched for the first time is slow; before a run that allocates, as much memory is touched and freed. The limits are not
lower bounds in the mathematical sense: an idea better than ours may beat them. fio's own cost is in every figure.
"""


def note(text: str) -> None:
    print(f"bench/run: {text}", file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: seconds, operations a second (fio only), seconds of CPU, peaks of resident memory in KiB, and the share
    of all processors that others used meanwhile."""

    wall: float
    rate: float | None
    cpu: float
    server_rss: int
    client_rss: int
    others: float


@dataclasses.dataclass
class Entry:
    """One contender's runs in one work."""

    name: str
    family: str
    aside: bool
    runs: list[Run] = dataclasses.field(default_factory=list)

    def median(self, field: str) -> float:
        return statistics.median(getattr(run, field) for run in self.runs)

    @property
    def is_peer(self) -> bool:
        return self.family in ("nbdkit", "qemu") and not self.aside

    @property
    def is_ours(self) -> bool:
        return self.family == "ours" and not self.aside


class Result:
    """One work's runs. `size`: bytes copied, 0 when only time counts."""

    def __init__(self, name: str, title: str, size: int, is_fio: bool):
        self.name, self.title, self.size, self.is_fio = name, title, size, is_fio
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, family: str, aside: bool) -> None:
        self._entries[name] = Entry(name, family, aside)

    def record(self, name: str, run: Run) -> None:
        self._entries[name].runs.append(run)

    @property
    def entries(self) -> list[Entry]:
        """Those that have run."""
        return [entry for entry in self._entries.values() if entry.runs]

    def slowness(self, entry: Entry) -> float:
        """Seconds for the work, or for one operation: smaller is better, in every work."""
        return 1 / entry.median("rate") if self.is_fio else entry.median("wall")

    def best_peer(self, of_cpu: bool) -> Entry | None:
        cost = (lambda entry: entry.median("cpu")) if of_cpu else self.slowness
        return min((entry for entry in self.entries if entry.is_peer), key=cost, default=None)

    def speed_ratio(self, entry: Entry) -> float | None:
        peer = self.best_peer(of_cpu=False)
        return self.slowness(peer) / self.slowness(entry) if peer else None

    def cpu_ratio(self, entry: Entry) -> float | None:
        peer = self.best_peer(of_cpu=True)
        return peer.median("cpu") / max(entry.median("cpu"), 1e-6) if peer else None

    def share_of_limit(self, entry: Entry) -> float | None:
        limit = next((one for one in self.entries if one.family == "limit"), None)
        return self.slowness(limit) / self.slowness(entry) if limit else None

    def as_json(self) -> dict:
        return {
            "name": self.name,
            "title": self.title,
            "size": self.size,
            "contenders": [dataclasses.asdict(entry) for entry in self.entries],
        }


# Words for numbers


def seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1e3:.2f} ms"


def times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "" if value is None else f"{value * 100:.{0 if value >= 0.1 else 1}f} %"


def mebibytes(kibibytes: float) -> str:
    return f"{kibibytes / 1024:.0f}" if kibibytes else "–"


def rate(value: float) -> str:
    return f"{value / 1e3:.1f}k"


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The first column is text, the others are numbers."""
    rule = "|---|" + "---:|" * (len(head) - 1)
    return [row(*head), rule, *(row(*cells) for cells in rows), ""]


def figures(result: Result, entry: Entry) -> list[str]:
    if result.is_fio:
        rates = [run.rate or 0.0 for run in entry.runs]
        return [rate(entry.median("rate")), f"{rate(min(rates))}–{rate(max(rates))}"]
    walls = [run.wall for run in entry.runs]
    speed = f"{result.size / entry.median('wall') / 1e9:.2f}" if result.size else ""
    return [seconds(entry.median("wall")), f"{seconds(min(walls))}–{seconds(max(walls))}", speed]


def disturbance(result: Result) -> str:
    """Says so when another program used the machine. Runs of a few milliseconds are too short to tell."""
    shares = [run.others for entry in result.entries for run in entry.runs if run.wall > 0.2]
    if not shares or statistics.median(shares) < 0.05:
        return ""
    return f"*Disturbed: others used {percent(statistics.median(shares))} of the processors, at worst {percent(max(shares))}.*"


def one_work(result: Result) -> list[str]:
    figure_heads = ["ops/s", "worst–best"] if result.is_fio else ["wall", "best–worst", "GB/s"]
    head = ["", *figure_heads, "CPU", "RSS server + client, MiB", "× best peer", "× best peer, CPU", "of the limit"]
    rows = []
    for entry in result.entries:
        name = f"*{entry.name}*, for information" if entry.aside else f"**{entry.name}**" if entry.is_ours else entry.name
        rss = f"{mebibytes(entry.median('server_rss'))} + {mebibytes(entry.median('client_rss'))}"
        ratios = [times(result.speed_ratio(entry)), times(result.cpu_ratio(entry)), percent(result.share_of_limit(entry))]
        rows.append([name, *figures(result, entry), seconds(entry.median("cpu")), rss, *ratios])
    title = f"{result.title[:1].upper()}{result.title[1:]}. {disturbance(result)}".strip()
    return [f"### {result.name}", "", title, "", *table(head, rows)]


def summary(results: list[Result]) -> list[str]:
    rows = []
    for result in results:
        fastest, thriftiest = result.best_peer(of_cpu=False), result.best_peer(of_cpu=True)
        for entry in result.entries:
            if entry.is_ours:
                peers = " / ".join(peer.name if peer else "none" for peer in (fastest, thriftiest))
                ratios = [times(result.speed_ratio(entry)), times(result.cpu_ratio(entry)), percent(result.share_of_limit(entry))]
                rows.append([result.name, entry.name, peers, *ratios])
    if not rows:
        return []
    head = ["work", "ours", "best peer in speed / in CPU", "× in speed", "× in CPU", "of the limit"]
    return ["## Summary", "", *table(head, rows)]


def markdown(machine: dict, results: list[Result], runs: int, quick: bool) -> str:
    measured = "one run of an eighth of the work (--quick: not for publication)" if quick else f"medians of {runs}"
    head = [
        "# Measurements",
        "",
        f"{machine['processor']}, {machine['processors']} processors, {machine['memory_mib']} MiB, Linux {machine['kernel']}, "
        f"load {machine['load']} at the end; {measured}.",
        f"diskferry: {machine['diskferry']}. Peers: {', '.join(machine['peers'])}.",
        "",
    ]
    works = ["## Works", ""]
    for result in results:
        works += one_work(result)
    return "\n".join([*head, *summary(results), *works, EXPLANATION])
