"""Charts as inline SVG, without script: lines over message sizes, and the bar of one figure. Knows
no experiment.

Series differ by colour (Okabe and Ito's, which colour-blind readers tell apart), by marker and by
dashes. Colours are CSS variables, so that light and dark are the page's choice. Text is laid out
for 360 units of width, the phone's; a wider page scales it up to twice at most.
"""
import html
import math

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 350, 12, 196
SERIES = 8  # colours; more series repeat them with other dashes
DASHES = ("", "5 3", "1.5 3")
SIZE_TICKS = 6


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def log_position(value, low, high, first, last):
    if high == low:
        return (first + last) / 2
    return first + (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) * (
        last - first)


def decades(low, high):
    """Round tick values from below `low` to above `high`: 1, 10, 100; with 2 and 5 between if there
    are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [step * 10.0 ** power for power in range(first, last + 1) for step in steps]
    begin = max((tick for tick in ticks if tick <= low * 1.0001), default=ticks[0])
    end = min((tick for tick in ticks if tick >= high * 0.9999), default=ticks[-1])
    kept = [tick for tick in ticks if begin <= tick <= end]
    while len(kept) > 7:
        kept = kept[::2] if kept[-1] in kept[::2] else kept[::2] + [kept[-1]]
    return kept if len(kept) > 1 else [begin, begin * 10]


def tick_text(value):
    return (
        f"{value:g}"
        if 1e-3 <= value < 1e5
        else f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-"))


def short_size(size):
    for unit, text in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{text}"
    return str(size)


def marker(kind, x, y, style):
    at = f'class="mark s{style}"'
    if kind % 4 == 0:
        return f'<circle {at} cx="{number(x)}" cy="{number(y)}" r="3"/>'
    if kind % 4 == 1:
        return f'<rect {at} x="{number(x - 2.7)}" y="{number(y - 2.7)}" width="5.4" height="5.4"/>'
    shape = (
        ((0, -3.6), (3.3, 2.6), (-3.3, 2.6))
        if kind % 4 == 2
        else ((0, -3.8), (3.8, 0), (0, 3.8), (-3.8, 0)))
    points = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in shape)
    return f'<polygon {at} points="{points}"/>'


def dashes(index):
    pattern = DASHES[index // SERIES % len(DASHES)]
    return f' stroke-dasharray="{pattern}"' if pattern else ""


def legend_key(index):
    """The line and marker of a series, for a legend in HTML."""
    return (
        '<svg class="key" viewBox="0 0 26 10" width="26" height="10" aria-hidden="true"><line'
        f' class="line s{index % SERIES}" x1="0" y1="5" x2="26"'
        f' y2="5"{dashes(index)}/>{marker(index, 13, 5, index % SERIES)}</svg>')


def lines(series, unit, title):
    """An SVG of {name: [(size, low, median, high)]}; figures and sizes on logarithmic axes."""
    points = [point for line in series.values() for point in line]
    sizes = sorted({point[0] for point in points})
    ticks = decades(min(point[1] for point in points), max(point[3] for point in points))

    def at(size, value):
        return (
            log_position(size, sizes[0], sizes[-1], LEFT + 8, RIGHT - 8),
            log_position(value, ticks[0], ticks[-1], BOTTOM, TOP))

    out = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{html.escape(title)}">']
    for tick in ticks:
        y = number(at(sizes[0], tick)[1])
        out.append(
            f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{RIGHT}" y2="{y}"/><text x="{LEFT - 5}"'
            f' y="{number(float(y) + 3.5)}" text-anchor="end">{tick_text(tick)}</text>')
    for size in spread_out(sizes):
        x = number(at(size, ticks[0])[0])
        out.append(
            f'<text x="{x}" y="{BOTTOM + 14}" text-anchor="middle">{short_size(size)}</text>')
    out.append(
        f'<text x="{(LEFT + RIGHT) // 2}" y="{HEIGHT - 4}"'
        f' text-anchor="middle">{html.escape(unit)}, by bytes of a message</text>')
    for index, line in enumerate(series.values()):
        out += one_line(
            index,
            [
                (at(size, low), at(size, middle), at(size, high))
                for size, low, middle, high in sorted(line)])
    return "\n".join(out + ["</svg>"])


def points(named, x_unit, y_unit, title):
    """An SVG of [(name, x, y, on the front)] on logarithmic axes, each with a number; those on the
    front are joined. The numbers are for a legend."""
    x_ticks, y_ticks = (
        decades(min(values), max(values))
        for values in ([each[1] for each in named], [each[2] for each in named]))

    def at(x, y):
        return log_position(x, x_ticks[0], x_ticks[-1], LEFT + 8, RIGHT - 8), log_position(
            y, y_ticks[0], y_ticks[-1], BOTTOM, TOP)

    out = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{html.escape(title)}">']
    for tick in y_ticks:
        y = number(at(x_ticks[0], tick)[1])
        out.append(
            f'<line class="grid" x1="{LEFT}" y1="{y}" x2="{RIGHT}" y2="{y}"/><text x="{LEFT - 5}"'
            f' y="{number(float(y) + 3.5)}" text-anchor="end">{tick_text(tick)}</text>')
    out += [
        f'<text x="{number(at(tick, y_ticks[0])[0])}" y="{BOTTOM + 17}"'
        f' text-anchor="middle">{tick_text(tick)}</text>'
        for tick in x_ticks]
    out.append(
        f'<text x="{(LEFT + RIGHT) // 2}" y="{HEIGHT - 4}"'
        f' text-anchor="middle">{html.escape(x_unit)}, against {html.escape(y_unit)}</text>')
    front = " ".join(
        ",".join(map(number, at(x, y)))
        for _, x, y, best in sorted(named, key=lambda each: each[1])
        if best)
    out.append(f'<polyline class="line s0" points="{front}"/>')
    for _, x, y, best in named:
        out.append(marker(0 if best else 1, *at(x, y), 0 if best else 1))
    for index, (x, y) in enumerate(apart([at(x, y) for _, x, y, _ in named])):
        out.append(f'<text x="{number(x)}" y="{number(y)}">{index + 1}</text>')
    return "\n".join(out + ["</svg>"])


def apart(marks):
    """Where the number of each mark begins: beside it, and off the numbers before it."""
    width, height = 14, 11  # two digits
    placed = []
    for x, y in marks:
        beside = [
            (x + dx, y + dy)
            for far in range(0, 60, 4)
            for dx, dy in ((6 + far, -5), (6 + far, 10), (-6 - width - far, -5),
                           (-6 - width - far, 10), (-5, -8 - far), (-5, 14 + far))]
        inside = [
            at for at in beside
            if LEFT < at[0] < RIGHT - width and TOP + height < at[1] < BOTTOM - 2]
        free = [
            at for at in inside
            if all(abs(at[0] - o[0]) >= width or abs(at[1] - o[1]) >= height for o in placed)]
        placed.append((free or inside or beside)[0])
    return placed


def spread_out(sizes):
    """Tick sizes far enough apart that their texts do not touch: first and last, and what fits
    between."""
    room = (RIGHT - LEFT - 16) / max(math.log(sizes[-1] / sizes[0]), 1e-9) if len(sizes) > 1 else 0
    kept = [sizes[0]]
    for size in sizes[1:]:
        if math.log(size / kept[-1]) * room >= 30:
            kept.append(size)
    return kept


def one_line(index, points):
    style = index % SERIES
    path = " ".join(f"{number(middle[0])},{number(middle[1])}" for _, middle, _ in points)
    out = [f'<polyline class="line s{style}" points="{path}"{dashes(index)}/>']
    for low, middle, high in points:
        if abs(low[1] - high[1]) > 1:
            out.append(
                f'<line class="error s{style}" x1="{number(middle[0])}" y1="{number(low[1])}"'
                f' x2="{number(middle[0])}" y2="{number(high[1])}"/>')
        out.append(marker(index, *middle, style))
    return out


def bar(low, middle, high, most, ours):
    """The bar of one figure with its interval, from zero to `most`. Stretches with its cell; no
    text."""
    scale = 1000.0 / most if most > 0 else 0.0
    x0, x, x1 = (number(value * scale) for value in (low, middle, high))
    style = "ours" if ours else "theirs"
    return (
        '<svg class="bar" viewBox="0 0 1000 12" preserveAspectRatio="none"'
        f' aria-hidden="true"><rect class="{style}" x="0" y="2" width="{x}" height="8"/><line'
        f' class="whisker" x1="{x0}" y1="6" x2="{x1}" y2="6"/><line class="whisker" x1="{x0}"'
        f' y1="3" x2="{x0}" y2="9"/><line class="whisker" x1="{x1}" y1="3" x2="{x1}" y2="9"/></svg>'
    )
