"""Heat map of a report log as one self-contained HTML file: no script, style, font or image from elsewhere.

The matrix travels as one byte per rank and report (base64), so 10,000 ranks and 500 reports are 7 MB; a canvas
draws it, binned by the slowest rank per pixel row, a click zooms into ranks, and what the pointer is on is told in
words. Names come from the job and are put into the page as JSON text nodes, never as markup.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from string import Template

import numpy as np
import numpy.typing as npt

from straggler.reporting.heatmap_png import SCALE, Picture

__all__ = ["write_html"]

_STEP = 0.01
"""Slowdown per byte step; byte 100 is as fast as the peers, 255 unknown."""


def write_html(picture: Picture, path: str | os.PathLike[str]) -> Path:
    """Write the page.

    Args:
        picture: What to show.
        path: The file.
    """
    data = {
        "ranks": picture.slowdown.shape[0],
        "reports": picture.slowdown.shape[1],
        "matrix": _bytes(picture.slowdown),
        "minutes": [round(minute, 2) for minute in picture.minutes],
        "sections": [
            {
                "name": name,
                "worst": _bytes(rows[2:3]),
                "p90": _bytes(rows[1:2]),
                "rank": picture.worst_rank[name],
            }
            for name, rows in picture.sections.items()
        ],
        "slow": [[rank, column, text] for rank, column, text in picture.slow],
        "title": picture.title,
        "scale": SCALE,
    }
    # "</" inside a script element would end it.
    text = json.dumps(data, ensure_ascii=True).replace("</", "<\\/")
    target = Path(path)
    target.write_text(Template(_PAGE).substitute(data=text), encoding="utf-8")
    return target


def _bytes(values: npt.NDArray[np.float64]) -> str:
    steps = np.clip(np.round(np.nan_to_num(values, nan=0.0) / _STEP) + 100, 0, 254).astype(np.uint8)
    steps[np.isnan(values)] = 255
    return base64.b64encode(steps.tobytes()).decode("ascii")


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stragglers</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #ffffff; --soft: #6b6b6b; --line: #d8d8d8; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --paper: #16181b; --soft: #a3a3a3; --line: #3a3d42; } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 24px; }
h1 { font-size: 18px; margin: 0 0 2px; } h2 { font-size: 14px; margin: 18px 0 4px; }
.soft { color: var(--soft); } .row { display: flex; gap: 10px; align-items: stretch; }
.label { width: 170px; flex: none; text-align: right; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  font-size: 12px; line-height: 18px; }
canvas { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--line); cursor: crosshair; }
.grow { flex: 1; min-width: 0; } #said { min-height: 1.5em; font-variant-numeric: tabular-nums; margin: 6px 0; }
.axis { display: flex; justify-content: space-between; font-size: 12px; }
.ranks { display: flex; flex-direction: column; justify-content: space-between; font-size: 12px; text-align: right;
  width: 170px; flex: none; }
.bar { height: 12px; width: 320px; } table { border-collapse: collapse; margin-top: 6px; }
td, th { padding: 2px 14px 2px 0; text-align: left; font-size: 13px; }
button { font: inherit; padding: 1px 10px; }
</style></head><body>
<h1>Stragglers</h1><div id="title" class="soft"></div>
<p class="row"><canvas class="bar" id="legend" width="320" height="12" style="width:320px"></canvas>
<span class="soft" id="legendtext"></span></p>
<h2>Ranks over time <button id="back" hidden>all ranks</button></h2>
<div class="soft" id="hint"></div>
<div id="said"></div>
<div class="row"><div class="ranks soft" id="ranks"></div>
<div class="grow"><canvas id="heat"></canvas></div></div>
<div class="row"><div class="label"></div><div class="grow axis soft" id="axis"></div></div>
<h2>Sections: the slowest rank in each</h2><div id="strips"></div>
<h2 id="slowhead">Named slow</h2><table id="slow"></table>
<script type="application/json" id="data">$data</script>
<script>
"use strict";
const d = JSON.parse(document.getElementById("data").textContent);
const unpack = s => Uint8Array.from(atob(s), c => c.charCodeAt(0));
const matrix = unpack(d.matrix), T = d.reports, N = d.ranks, ROWS = 600;
let from = 0, to = N;
const el = (tag, text) => { const e = document.createElement(tag); e.textContent = text; return e; };
function colour(b) {
  if (b === 255) return [150, 150, 150];
  const x = Math.max(-1, Math.min(1, (b - 100) / 100 / d.scale));
  const to = x > 0 ? [165, 15, 40] : [25, 80, 160], a = Math.pow(Math.abs(x), 1.3);
  return [0, 1, 2].map(i => Math.round(244 + (to[i] - 244) * a));
}
function said(b) {
  if (b === 255) return "unknown";
  return (b >= 100 ? (b - 100) + " % slower" : (100 - b) + " % faster") + " than its peers";
}
function paint(canvas, w, h, at) {
  canvas.width = w; canvas.height = h;
  const c = canvas.getContext("2d"), image = c.createImageData(w, h);
  for (let y = 0, p = 0; y < h; y++) for (let x = 0; x < w; x++, p += 4) {
    const [r, g, b] = colour(at(x, y));
    image.data[p] = r; image.data[p + 1] = g; image.data[p + 2] = b; image.data[p + 3] = 255;
  }
  c.putImageData(image, 0, 0);
}
const heat = document.getElementById("heat");
function rows() { return Math.min(ROWS, to - from); }
function span(y) {
  const n = to - from, h = rows(), first = Math.floor(y * n / h);
  return [from + first, from + Math.max(Math.floor((y + 1) * n / h), first + 1)];
}
function worst(x, y) {
  const [a, b] = span(y); let best = -1, rank = a;
  for (let r = a; r < b; r++) { const v = matrix[r * T + x]; if (v !== 255 && v > best) { best = v; rank = r; } }
  return [best < 0 ? 255 : best, rank];
}
function draw() {
  paint(heat, T, rows(), (x, y) => worst(x, y)[0]);
  heat.style.height = Math.max(260, Math.min(600, rows() * 18)) + "px";
  const ranks = document.getElementById("ranks"); ranks.replaceChildren();
  for (let i = 0; i <= 4; i++) ranks.append(el("span", "rank " + Math.round(from + (to - 1 - from) * i / 4)));
  document.getElementById("back").hidden = to - from === N;
  const per = Math.ceil((to - from) / rows());
  const shared = per > 1 ? "Each line is the slowest of " + per + " ranks. Click to zoom in. " : "";
  document.getElementById("hint").textContent = shared + "Point at a cell to read it.";
}
function place(e, canvas, w, h) {
  const box = canvas.getBoundingClientRect();
  return [Math.min(w - 1, Math.max(0, Math.floor((e.clientX - box.left) / box.width * w))),
          Math.min(h - 1, Math.max(0, Math.floor((e.clientY - box.top) / box.height * h)))];
}
const when = x => "minute " + d.minutes[x].toFixed(1) + " (report " + x + ")";
heat.onmousemove = e => {
  const [x, y] = place(e, heat, T, rows()), [v, r] = worst(x, y);
  document.getElementById("said").textContent = when(x) + ", rank " + r + ": " + said(v);
};
heat.onclick = e => {
  if (to - from <= 64) return;
  const [, y] = place(e, heat, T, rows()), [a] = span(y), half = Math.max(32, Math.floor((to - from) / 20));
  from = Math.max(0, a - half); to = Math.min(N, a + half); draw();
};
document.getElementById("back").onclick = () => { from = 0; to = N; draw(); };
document.getElementById("title").textContent = d.title;
const axis = document.getElementById("axis");
for (let i = 0; i <= 6; i++) {
  axis.append(el("span", d.minutes[Math.round((T - 1) * i / 6)].toFixed(0) + (i === 6 ? " min" : "")));
}
const strips = document.getElementById("strips");
if (!d.sections.length) strips.append(el("div", "no sections in this log"));
for (const s of d.sections) {
  const row = el("div", ""), canvas = el("canvas", ""), grow = el("div", ""), label = el("div", s.name);
  row.className = "row"; grow.className = "grow"; label.className = "label"; label.title = s.name;
  const w = unpack(s.worst); paint(canvas, T, 1, x => w[x]); canvas.style.height = "18px";
  canvas.onmousemove = e => {
    const [x] = place(e, canvas, T, 1);
    document.getElementById("said").textContent = when(x) + ", " + s.name + ", rank " + s.rank[x] + ": " + said(w[x]);
  };
  grow.append(canvas); row.append(label, grow); strips.append(row);
}
const last = new Map(); for (const [r, c, t] of d.slow) last.set(r, [c, t]);
const table = document.getElementById("slow");
if (!last.size) document.getElementById("slowhead").textContent = "Nobody was named slow";
for (const [r, [c, t]] of [...last].sort((a, b) => b[1][0] - a[1][0]).slice(0, 200)) {
  const row = document.createElement("tr"); row.append(el("td", t), el("td", "last in report " + c)); table.append(row);
}
const legend = document.getElementById("legend"), k = Math.round(100 * d.scale);
paint(legend, 320, 1, x => 100 - k + Math.round(2 * k * x / 319)); legend.style.height = "12px";
document.getElementById("legendtext").textContent =
  k + " % faster than peers … as fast … " + k + " % slower and more; grey: unknown";
draw();
</script></body></html>
"""
