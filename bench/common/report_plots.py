"""The plots of report.py: bars, a timeline and an area over x, each an SVG of its own; the page around them, and its
style. Nothing in a page refers to anything outside it."""
import html, math, os, re
from collections import Counter, defaultdict
from dataclasses import dataclass

WIDE, HALF, GUTTER = 1160, 564, 220  # pixels: a plot, one of two in a row, what is left of a timeline
CHARACTER = 6.7                      # the width of one in a plot
MOST_BOXES = 5000                    # of a timeline
SECONDS = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
BYTES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
TIMES = ((1, "×"),)
PARTS = {name: f"p{i}" for i, name in enumerate((
    "embedding", "attention: projections", "attention: scores to values", "attention: rope", "attention: norm, residual",
    "ffn: products", "ffn: gate, norm, residual", "final norm", "head", "loss", "optimizer", "other"))}  # as lm_profile/steps.cpp
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--ink:#1b2530;--soft:#5d6a77;--line:#e4e8ec;--pale:#d9e1e8;--box:#f5f7f9;
--deep:#c9d3dc;--ours:#0072b2;--ours2:#6aaed6;--theirs:#d55e00;--theirs2:#efa36b}
@media(prefers-color-scheme:dark){:root{--bg:#13171c;--ink:#e3e8ed;--soft:#97a4b0;--line:#293139;--pale:#313c47;--box:#1a2027;
--deep:#3c4854;--ours:#4aa8e0;--ours2:#2f6488;--theirs:#e8833a;--theirs2:#8f5a33}}
body{margin:0 auto;max-width:1160px;padding:28px 20px 80px;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:21px;margin:56px 0 10px;padding-top:14px;border-top:2px solid var(--ink)}
h3{font-size:16px;margin:30px 0 2px}p{margin:2px 0 8px;color:var(--soft);max-width:100ch}a{color:var(--ours);text-decoration:none}
a:hover{text-decoration:underline}b{color:var(--ink)}nav{margin:18px 0;padding:12px 18px;background:var(--box);border-radius:6px}
nav div{margin:3px 0}nav span{color:var(--soft);font-size:13px}code,dd,svg,.n{font-family:ui-monospace,SFMono-Regular,Menlo,
"DejaVu Sans Mono",Consolas,monospace}dl{display:grid;grid-template-columns:max-content 1fr;gap:1px 16px;margin:0;font-size:13px}
dt{color:var(--soft)}dd{margin:0;font-size:12px;line-height:20px;overflow-wrap:anywhere}
svg{display:block;max-width:100%;height:auto;margin:4px 0;font-size:11px;fill:var(--ink);break-inside:avoid}
.two{columns:2;column-gap:32px}.two svg{margin:0 0 8px}@media(max-width:1000px){.two{columns:1}}
details p{margin:14px 0 0}summary{cursor:pointer;font-size:14px;color:var(--ours);margin:6px 0}
.keys{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--soft);margin:6px 0}
.keys i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
svg text{white-space:pre}.e{text-anchor:end}.m{text-anchor:middle}.t{fill:var(--soft)}.h{font-weight:600}.g{stroke:var(--line)}
.r{stroke:var(--ink);stroke-width:1.2;fill:none}.o{fill:var(--ink);opacity:.55}.d{stroke:var(--theirs);stroke-dasharray:3 3}
.w{fill:#fff}.k{fill:#111}.pale{fill:var(--pale)}.deep{fill:var(--deep)}
.s{opacity:.42}.x{stroke:var(--bg);stroke-width:.5}
path.line{fill:none;stroke-width:2}.line.ours{stroke:var(--ours)}.line.theirs{stroke:var(--theirs)}
""" + "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in ("ours", "ours2", "theirs", "theirs2")) + \
    "".join(f".p{i}{{fill:{c};background:{c}}}.line.p{i}{{stroke:{c}}}" for i, c in enumerate((  # hues by family: attention blue, ffn orange
        "#009e73", "#0b5fa5", "#3f9be0", "#8fc9f5", "#c3e0f7", "#c95200", "#f2a65a", "#7fd0b6", "#8e5ba6", "#d88bb6", "#dfc23a",
        "#9aa3ab")))


def esc(text):
    """As HTML and as XML, whatever is in it."""
    text = str(text).encode("utf-8", "replace").decode()
    return html.escape(re.sub(r"[\x00-\x09\x0b-\x1f\x7f\ufffe\uffff]", " ", text))


def cut(text, most):
    return text if len(text) <= most else text[:max(1, most - 1)] + "…"


def unit(x, units):
    return next((u for u in units if abs(x) >= u[0] * 0.9995), units[-1])


def shown(x, units):
    """With three digits."""
    by, name = unit(x, units)
    x /= by
    digits = 0 if abs(x) >= 99.95 or units is BYTES and by == 1 else 1 if abs(x) >= 9.995 else 2
    return f"{x:.{digits}f} {name}" if x else "0"


def took(x):
    return shown(x, SECONDS)


def big(x):
    return shown(x, BYTES)


def ticks(low, high, count, units):
    """Round numbers and their labels."""
    rough = (high - low) / count or 1
    steps = [m * 10 ** math.floor(math.log10(rough)) for m in (1, 2, 5, 10)]
    step = next((s for s in steps if rough * 0.999 <= s <= high - low), max((s for s in steps if s <= high - low), default=rough))
    by, name = unit(high, units)
    numbers = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return [(x, f"{x / by:.6g}{' ' * (units is not TIMES)}{name}" if x else "0") for x in numbers]


# Plots: bars(), timeline() and area() return an SVG each.

def text(x, y, s, cls=""):
    return f'<text x="{x:.1f}" y="{y:.1f}"{cls and f" class={chr(34)}{cls}{chr(34)}"}>{esc(s)}</text>'


def rule(x1, y1, x2, y2, cls):
    return f'<path class="{cls}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def rect(x, y, width, height, cls, tip=""):
    shape = f'<path class="{cls}{" x" * (width > 3)}" d="M{x:.1f} {y:.4g}h{width:.2f}v{height:.4g}h-{width:.2f}z"'
    return f"{shape}><title>{esc(tip)}</title></path>" if tip else shape + "/>"


def svg(width, height, pieces, name):
    return (f'<svg viewBox="0 0 {width} {height:.0f}" width="{width}" height="{height:.0f}" role="img" '
            f'aria-label="{esc(name)}">{"".join(pieces)}</svg>')


@dataclass
class Bar:
    label: str
    value: float = None   # None: the label is a heading
    text: str = ""        # right of the plot
    cls: str = "ours"
    of: float = 0         # a pale bar behind it: what the value is a part of
    span: tuple = ()      # from, to: a whisker
    dots: tuple = ()
    parts: tuple = ()     # (length, class, tip), in place of the value
    tip: str = ""


def bars(rows, units, name, width=WIDE, scale=0, lines=(), axis=True, label=0):
    """A bar for each row, from 0. What is longer than `scale` is cut there, and notched; 0: the longest is whole. lines: (at,
    label). label: characters, for plots whose bars begin at one place."""
    most = 50 if width == WIDE else 38
    left = CHARACTER * max(label, *(min(most, len(r.label)) for r in rows if r.value is not None)) + 12
    right = CHARACTER * max(len(r.text) for r in rows) + 16
    plot, top = width - left - right, 18 if lines else 4
    full = scale or max(max([r.value or 0, r.of, *r.span, *r.dots]) for r in rows) or 1
    at = lambda x: left + plot * min(x / full, 1)
    y, drawn = top, []
    for r in rows:
        if r.value is None:
            y += 21
            drawn.append(text(0, y - 6, r.label, "h") + text(width, y - 6, r.text, "e t"))
            continue
        tip = r.tip or f"{r.label}: {r.text}"
        drawn.append(text(left - 10, y + 11, cut(r.label, most), "e") + text(width, y + 11, r.text, "e"))
        if r.of:
            drawn.append(rect(left, y + 2, at(r.of) - left, 12, "pale", tip))
        x = 0
        for length, cls, what in r.parts or ((r.value, r.cls, tip),):
            drawn.append(rect(at(x), y + (4 if r.of else 2), max(at(x + length) - at(x), 0.6), 8 if r.of else 12, cls, what))
            x += length
        if r.span:
            low, high = map(at, r.span)
            drawn.append(f'<path class="r" d="M{low:.1f} {y + 5}v6M{low:.1f} {y + 8}H{high:.1f}' +
                         (f'M{high:.1f} {y + 5}v6"/>' if r.span[1] <= full else '"/>'))
        drawn += [f'<circle class="o" cx="{at(x):.1f}" cy="{y + 8}" r="2.2"/>' for x in r.dots if x <= full]
        if max([r.value, *r.span]) > full * 1.0001:
            drawn.append(f'<path class="r" d="M{left + plot - 5:.1f} {y + 2}l5 6l-5 6"/>')
        y += 17
    grid = []
    for x, label in ticks(0, full, max(2, plot // 110), units) if axis else ():
        grid.append(rule(at(x), top + 21 * (rows[0].value is None), at(x), y + 2, "g") + text(at(x), y + 14, label, "m t"))
    for i, (x, label) in enumerate(sorted(lines)):  # the first label on the left of its line
        drawn.append(rule(at(x), top - 14, at(x), y + 2, "d") + text(at(x) + (4 if i else -4), top - 6, label, "t" if i else "e t"))
    return svg(width, y + (20 if axis else 4), grid + drawn, name)


def thinned(boxes, least):
    """Boxes (begin, end, name, class, count) of a row, by begin. Narrow ones next to each other become one that is not much
    wider, of the class that takes the most time in it; then neighbours of one class join."""
    rows = []  # begin, end, count, narrow, seconds by (class, name)
    for begin, end, name, cls, count in boxes:
        narrow, last = end - begin < least, rows[-1] if rows else None
        if not (narrow and last and last[3] and begin - last[1] < least and end - last[0] < 2 * least):
            last = [begin, begin, 0, narrow, Counter()]
            rows.append(last)
        last[1], last[2] = max(last[1], end), last[2] + count
        last[4][cls, name] += end - begin
    joined = []
    for begin, end, count, narrow, of in rows:
        classes = Counter()
        for (cls, _), seconds in of.items():
            classes[cls] += seconds
        cls = max(classes, key=classes.get)
        last = joined[-1] if joined else None
        if narrow and last and last[3] and last[4] == cls and begin - last[1] < least:
            last[1], last[2] = end, last[2] + count
            last[5].update(of)
        else:
            joined.append([begin, end, count, narrow, cls, of])
    name = lambda of: max(of, key=of.get)[1] + " and others" * (len(of) > 1)
    return [(begin, end, name(of), cls, count) for begin, end, count, _, cls, of in joined]


def timeline(lanes, span, name):
    """lanes: (name, rows of boxes, one below the other). Labels where they fit, tips for what is wide enough to point at."""
    begin, end = span
    plot, least = WIDE - GUTTER, 0.5 * (end - begin) / (WIDE - GUTTER)
    lanes = [(lane, [[(max(b[0], begin), min(b[1], end), *b[2:]) for b in row if b[0] < end and b[1] > begin] for row in rows])
             for lane, rows in lanes]
    lanes = [(lane, [row for row in rows if row]) for lane, rows in lanes if any(rows)]
    while True:
        thin = [(lane, [thinned(row, least) for row in rows]) for lane, rows in lanes]
        if sum(len(row) for _, rows in thin for row in rows) <= MOST_BOXES or least > end - begin:
            break
        least *= 2
    at = lambda x: GUTTER + plot * (x - begin) / (end - begin)
    y, drawn, narrow = 20, [], defaultdict(list)
    for lane, rows in thin:
        drawn.append(text(0, y + 12, cut(lane, 31), "t"))
        for row in rows:
            for b, e, what, cls, count in row:
                width = max(at(e) - at(b), 0.6)
                if width < 2:
                    narrow[cls].append(f"M{at(b):.1f} {y}h{width:.1f}v15h-{width:.1f}z")
                    continue
                many = f", {count} in all" if count > 1 else ""
                drawn.append(rect(at(b), y, width, 15, cls, f"{what}{many}\n{took(e - b)}, from {took(b - begin)} on"))
                room = int((width - 5) / CHARACTER)
                if room >= min(len(what), 9):
                    ink = "w" if cls in ("p1", "p5", "p8") else "k" if cls in PARTS.values() else ""
                    drawn.append(text(at(b) + 3, y + 11, cut(what, room), ink))
            y += 16
        y += 8
    for cls, paths in narrow.items():
        drawn.append(f'<path class="{cls}" d="{"".join(paths)}"/>')
    grid = [rule(at(begin + x), 16, at(begin + x), y, "g") + text(at(begin + x), 11, label, "m t" if x else "t")
            for x, label in ticks(0, end - begin, 8, SECONDS) if at(begin + x) < WIDE - 20]
    return svg(WIDE, y, grid + drawn, name)


def area(series, units, name, labels=(), height=84, top=0, stairs=True, columns=False, axis=True, width=WIDE, gutter=GUTTER):
    """Values over x: (label, class, points) each, filled below where there is one, as stairs, lines or columns; (x, label)
    below. Points are by x; the last of stairs and columns only says where the one before ends. Lines may be below 0."""
    xs, ys = zip(*((x, y) for _, _, points in series for x, y in points))
    low, high, bottom = min(xs), max(xs), 1.06 * min(0, *ys)
    most = 1.06 * (top or max(0, *ys)) or -0.06 * bottom or 1.06
    at = lambda x: gutter + (width - gutter - 24 * (not stairs)) * (x - low) / (high - low or 1)
    up = lambda y: height - (height - 8) * (y - bottom) / (most - bottom)
    drawn = [text(0, 14, cut(series[0][0], 23), "t")] if len(series) == 1 else []
    for y, label in ticks(bottom, most, 5 if bottom else 3, units):
        drawn.append(rule(gutter, up(y), width, up(y), "g") + text(gutter - 8, up(y) + 4, label, "e t"))
    for label, cls, points in series:
        pairs = list(zip(points, points[1:]))
        if columns:
            drawn += [rect(at(a), up(y), max(at(b) - at(a) - 1, 0.6), height - up(y), cls, f"{x_label}: {shown(y, units)}")
                      for (a, y), (b, _), (_, x_label) in zip(points, points[1:], labels)]
        elif stairs:
            path = "".join(f"V{up(y):.1f}H{at(b):.1f}" for (_, y), (b, _) in pairs)
            drawn.append(f'<path class="{cls}" d="M{at(low):.1f} {height}{path}V{height}z"/>')
            peak = max(points, key=lambda p: p[1])
            drawn.append(text(min(max(at(peak[0]), gutter + 40), width - 90), 8, f"peak {shown(peak[1], units)}", "m h"))
        else:
            drawn.append(f'<path class="line {cls}" d="M' + "L".join(f"{at(x):.1f} {up(y):.1f}" for x, y in points) + '"/>')
            drawn += [f'<circle class="{cls}" cx="{at(x):.1f}" cy="{up(y):.1f}" r="3">'
                      f"<title>{esc(label)}: {shown(y, units)}</title></circle>" for x, y in points]
    if axis and labels:  # every one, every second, ...: as many as there is room for
        room = max(len(label) for _, label in labels) * CHARACTER + 8
        places = [(at(x) + (at(x + 1) - at(x)) / 2 * columns, label) for x, label in labels]
        step = next((s for s in range(1, len(places)) if all(b[0] - a[0] >= room for a, b in zip(places, places[s:]))), len(places))
        drawn += [text(x, height + 16, label, "m t") for x, label in places[::step] if x + room / 2 < width + 4]
    return svg(width, height + (20 if axis and labels else 6), drawn, name)


def keys(*pairs):
    return '<div class="keys">' + "".join(f'<span><i class="{cls}"></i>{esc(label)}</span>' for cls, label in pairs) + "</div>"


def folded(summary, *pieces):
    return f"<details><summary>{esc(summary)}</summary>{''.join(pieces)}</details>"


def two(plots):
    return f'<div class="two">{"".join(plots)}</div>' if len(plots) > 1 else "".join(plots)


class Page:
    def __init__(self):
        self.body, self.contents = [], []

    def file(self, title, path, facts):
        self.contents.append((title, path, []))
        rows = "".join(f"<dt>{esc(k)}</dt><dd>{esc(v)}</dd>" for k, v in (("file", path), *facts))
        self.body.append(f'<h2 id="f{len(self.contents)}">{esc(title)}</h2><dl>{rows}</dl>')

    def part(self, title, note, *pieces):
        parts = self.contents[-1][2]
        parts.append(title)
        heading = f'<h3 id="f{len(self.contents)}-{len(parts)}">{esc(title)}</h3>'
        self.body.append(heading + (note and f"<p>{note}</p>") + "".join(pieces))

    def html(self):
        toc = "".join(
            f'<div><a href="#f{i}">{esc(title)}</a> <span class="n">{esc(os.path.basename(path))}</span><br/><span>' +
            " · ".join(f'<a href="#f{i}-{j}">{esc(part)}</a>' for j, part in enumerate(parts, 1)) + "</span></div>"
            for i, (title, path, parts) in enumerate(self.contents, 1))
        return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>tapegrad: benchmarks</title>'
                '<meta name="viewport" content="width=device-width"/>' f"<style>{STYLE}</style></head><body>"
                f"<h1>tapegrad: benchmarks</h1><nav>{toc}</nav>{''.join(self.body)}</body></html>\n")
