"""Bars in SVG: groups of measured times, the shorter the better. Knows nothing of what was measured."""

import dataclasses
import html

# Fill of a bar by its kind, and the colours of text and lines, on a light and on a dark page.
LIGHT = {"ours": "#2a78d6", "half": "#8ab6ec", "peer": "#a6a49c", "text": "#1f1f1d", "quiet": "#63625c", "line": "#c9c8c2"}
DARK = {"ours": "#4a94ec", "half": "#2c5a94", "peer": "#77766f", "text": "#efeee9", "quiet": "#a9a89f", "line": "#4b4a45"}

WIDTH, LEFT, RIGHT, BAR, MARGIN = 760, 250, 60, 14, 10


@dataclasses.dataclass(frozen=True)
class Bar:
    """`kind`: ours, half (one end is ours), or peer."""

    label: str
    seconds: float
    kind: str
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class Group:
    title: str
    bars: list[Bar]
    note: str = ""


def rules(colours: dict[str, str]) -> str:
    return "".join(f".{name}{{fill:{colour}}}" for name, colour in colours.items())


def style(theme: str) -> str:
    """Rules for a theme: light, dark, or auto, which asks the reader's system."""
    font = "text{font:12px system-ui,sans-serif}.title{font-weight:600}.quiet{font-size:11px}"
    if theme == "auto":
        return f"{font}{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}"
    return font + rules(DARK if theme == "dark" else LIGHT)


def svg(groups: list[Group], theme: str, *, title: str, one_scale: bool) -> str:
    """One picture. With `one_scale` all groups share the scale of the longest bar; otherwise each has its own."""
    groups = [group for group in groups if group.bars]
    longest = max((bar.seconds for group in groups for bar in group.bars), default=1.0)
    at, parts = MARGIN, []
    for group in groups:
        scale = longest if one_scale else max(bar.seconds for bar in group.bars)
        parts.append(text(4, at + 12, "text title", group.title))
        at += BAR + 6
        for bar in group.bars:
            length = max(1.0, (WIDTH - LEFT - RIGHT - 80 * bool(bar.remark)) * bar.seconds / scale)
            parts.append(text(LEFT - 8, at + 11, "text", bar.label, anchor="end"))
            parts.append(f'<rect class="{bar.kind}" x="{LEFT}" y="{at + 1}" width="{length:.1f}" height="{BAR - 2}"/>')
            told = f"{bar.seconds:.2f} s{'  ' if bar.remark else ''}{bar.remark}"
            parts.append(text(LEFT + length + 6, at + 11, "text", told))
            at += BAR + 2
        if group.note:
            parts.append(text(LEFT, at + 11, "quiet", group.note))
            at += BAR + 2
        at += 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{at}" viewBox="0 0 {WIDTH} {at}" role="img">'
    return "\n".join([head, f"<title>{html.escape(title)}</title>", f"<style>{style(theme)}</style>", *parts, "</svg>", ""])


def text(x: float, y: float, kind: str, words: str, *, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" xml:space="preserve">{html.escape(words)}</text>'
