#!/usr/bin/env python3
"""Draws the prompt part of a trace (aqueduct run --trace FILE) as SVG: python3 docs/timeline.py TRACE.json > docs/streams.svg"""
import json
import sys

COLOURS = {"copy in": "#d98a3d", "experts": "#3f7fbf", "attention": "#57a06a", "route": "#b0466a", "wait": "#e4e4e4"}
OTHER = "#8fbf9c"
WIDTH, LEFT, ROW, GAP = 960, 90, 44, 16

events = json.load(open(sys.argv[1], encoding="utf-8"))
events = events["traceEvents"] if isinstance(events, dict) else events
names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 1}
rows = [tid for tid, name in sorted(names.items()) if name in ("compute", "experts")]
done = [event for event in events if event["ph"] == "X" and event["pid"] == 1 and event["tid"] in rows]
layer = [event for event in done if event["name"] == "rms norm"]
# From the first ring copy that is queued behind the prompt's start to the last product of an expert.
last = max(event["ts"] + event["dur"] for event in done if event["name"] == "experts")
begin = min(event["ts"] for event in layer) - 0.1 * (last - min(event["ts"] for event in layer))
scale = (WIDTH - LEFT - 10) / (last - begin)
height = len(rows) * (ROW + GAP) + 70

print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">')
print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
for place, tid in enumerate(rows):
    top = 10 + place * (ROW + GAP)
    print(f'<text x="8" y="{top + ROW / 2 + 4}">{names[tid]}</text>')
    for event in sorted((event for event in done if event["tid"] == tid), key=lambda event: event["name"] != "wait"):
        start, end = max(event["ts"], begin), min(event["ts"] + event["dur"], last)
        if end <= start:
            continue
        x, wide = LEFT + (start - begin) * scale, max((end - start) * scale - 0.3, 0.4)
        tall, shift = (ROW / 3, ROW / 3) if event["name"] == "wait" else (ROW, 0)
        colour = COLOURS.get(event["name"], OTHER)
        print(f'<rect x="{x:.1f}" y="{top + shift:.0f}" width="{wide:.1f}" height="{tall:.0f}" fill="{colour}"/>')
axis = 10 + len(rows) * (ROW + GAP)
print(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{axis}" y2="{axis}" stroke="#888"/>')
step = max(1, round((last - begin) / 1000 / 8))
for tick in range(0, int((last - begin) / 1000) + 1, step):
    x = LEFT + tick * 1000 * scale
    print(f'<text x="{x:.0f}" y="{axis + 16}" fill="#555" text-anchor="middle">{tick} ms</text>')
x = LEFT
for name, colour in [("copy of an expert", "#d98a3d"), ("experts' products", "#3f7fbf"), ("attention", "#57a06a"),
                     ("router", "#b0466a"), ("other kernels", OTHER), ("wait", "#e4e4e4")]:
    print(f'<rect x="{x}" y="{axis + 28}" width="12" height="12" fill="{colour}"/><text x="{x + 17}" y="{axis + 38}">{name}</text>')
    x += 140
print("</svg>")
