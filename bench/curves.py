"""Curves in SVG, both axes by powers: how a figure grows. Knows nothing of what was measured."""

import html
import math

COLOURS = ["#2a78d6", "#a6a49c", "#d68a2a", "#4a9a5a"]
WIDTH, HIGH, LEFT, TOP = 380, 300, 60, 34


def curves(title: str, across: str, up: str, lines: dict[str, list[tuple[float, float]]]) -> str:
    """One picture. Points without a positive figure are left out."""
    points = [point for line in lines.values() for point in line if min(point) > 0]
    if not points:
        return ""
    xs, ys = ([math.log10(point[axis]) for point in points] for axis in (0, 1))

    def place(values: list[float], value: float, length: float) -> float:
        low, high = min(values), max(values)
        return length * (math.log10(value) - low) / (high - low or 1)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return LEFT + place(xs, point[0], WIDTH - LEFT - 20), HIGH - 60 - place(ys, point[1], HIGH - 60 - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HIGH + 16 * len(lines)}" font-family="sans-serif" font-size="11" '
        f'fill="currentColor"><title>{html.escape(title)}</title><text x="8" y="16" font-size="13">{html.escape(title)}</text>'
    ]
    for values, axis in ((xs, 0), (ys, 1)):
        for power in range(math.floor(min(values)), math.ceil(max(values)) + 1):
            value = 10.0**power
            if not min(values) - 0.01 <= power <= max(values) + 0.01:
                continue
            x, y = at((value, 10 ** min(ys))) if axis == 0 else at((10 ** min(xs), value))
            where = f'x="{x:.0f}" y="{HIGH - 42}" text-anchor="middle"' if axis == 0 else f'x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end"'
            end = f'x2="{x:.0f}" y2="{TOP}"' if axis == 0 else f'x2="{WIDTH - 20}" y2="{y:.0f}"'
            parts.append(f'<line x1="{x:.0f}" y1="{y:.0f}" {end} stroke="currentColor" stroke-opacity="0.15"/><text {where}>{value:g}</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{HIGH - 26}" text-anchor="end">{html.escape(across)}</text><text x="8" y="30">{html.escape(up)}</text>')
    for (name, line), colour, row in zip(lines.items(), COLOURS * 9, range(99)):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(point) for point in line if min(point) > 0))
        y = HIGH + 16 * row
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<rect x="{LEFT}" y="{y - 6}" width="14" height="3" fill="{colour}"/><text x="{LEFT + 20}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
