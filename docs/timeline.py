#!/usr/bin/env python3
"""Draws the last layers of a trace's prompt (aqueduct run --trace FILE) as SVG, and says how much of the copies was hidden:
python3 docs/timeline.py TRACE.json [LAYERS [LEFT_OUT]] > docs/streams.svg"""
import json
import sys

COLOURS = {
    ("experts", "copy in"): "#d98a3d",
    ("kv in", "copy in"): "#8a63b8",
    ("kv out", "copy out"): "#b59ad0",
    ("compute", "experts"): "#3f7fbf",
    ("compute", "attention"): "#57a06a",
    ("compute", "route"): "#b0466a",
    ("compute", "wait"): "#e4e4e4",
}
OTHER = "#8fbf9c"
STREAMS = ("compute", "experts", "kv in", "kv out")
WIDTH, LEFT, ROW, GAP = 960, 90, 44, 16

wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 2
left_out = int(sys.argv[3]) if len(sys.argv) > 3 else 0
events = json.load(open(sys.argv[1], encoding="utf-8"))
events = events["traceEvents"] if isinstance(events, dict) else events
names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1}
done = [dict(event, on=names[event["tid"]]) for event in events if event["ph"] == "X" and event["pid"] == 1]
done = [event for event in done if event["on"] in STREAMS]

# A layer begins with its norm, right before the products whose keys and values are stored.
compute = sorted((event for event in done if event["on"] == "compute" and event["name"] != "wait"), key=lambda e: e["ts"])
last = max(i for i, event in enumerate(compute) if event["name"] == "experts")
stores = [i for i, event in enumerate(compute[:last]) if event["name"] == "store kv"]
norms = [max(j for j in range(i) if compute[j]["name"] == "linear") - 1 for i in stores]
norms.append(last + 1)
begin = compute[norms[-1 - wanted - left_out]]["ts"]
end = compute[norms[-1 - left_out] - 1]
end = end["ts"] + end["dur"]
scale = (WIDTH - LEFT - 10) / (end - begin)
height = len(STREAMS) * (ROW + GAP) + 70


def within(event):
    return max(event["ts"], begin), min(event["ts"] + event["dur"], end)


def busy(on, kinds):
    spans = [within(event) for event in done if event["on"] == on and event["name"] in kinds]
    return sum(max(0, stop - start) for start, stop in spans) / 1000


print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">')
print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
for place, stream in enumerate(STREAMS):
    top = 10 + place * (ROW + GAP)
    print(f'<text x="8" y="{top + ROW / 2 + 4}">{stream}</text>')
    own = [event for event in done if event["on"] == stream and (stream, event["name"]) != ("kv in", "wait")]
    for event in sorted(own, key=lambda event: event["name"] != "wait"):
        start, stop = within(event)
        if stop <= start or (event["name"] == "wait" and stream != "compute"):
            continue
        colour = COLOURS.get((stream, event["name"]), OTHER)
        print(
            f'<rect x="{LEFT + (start - begin) * scale:.1f}" y="{top}" width="{max((stop - start) * scale, 0.3):.1f}" '
            f'height="{ROW}" fill="{colour}" stroke="white" stroke-width="0.3"/>'
        )
axis = len(STREAMS) * (ROW + GAP) + 14
for tenth in range(11):
    x = LEFT + (WIDTH - LEFT - 10) * tenth / 10
    print(f'<text x="{x:.0f}" y="{axis}" text-anchor="middle">{(end - begin) / 10000 * tenth:.0f}</text>')
print(f'<text x="8" y="{axis}">ms</text>')
legend = [
    ("#57a06a", "attention"), (OTHER, "products, norms"), ("#b0466a", "router"), ("#3f7fbf", "experts"), ("#e4e4e4", "stands still"),
    ("#d98a3d", "experts in"), ("#8a63b8", "next layer's cells in"), ("#b59ad0", "new cells out"),
]
x = LEFT
for colour, text in legend:
    print(f'<rect x="{x}" y="{axis + 14}" width="12" height="12" fill="{colour}"/><text x="{x + 16}" y="{axis + 24}">{text}</text>')
    x += 30 + 6.4 * len(text)
print("</svg>")
kernels = {event["name"] for event in compute}
print(
    f"{wanted} layers in {(end - begin) / 1000:.1f} ms: computing {busy('compute', kernels):.1f}, standing still "
    f"{busy('compute', {'wait'}):.1f}; link: experts {busy('experts', {'copy in'}):.1f}, cells {busy('kv in', {'copy in'}):.1f}",
    file=sys.stderr,
)
