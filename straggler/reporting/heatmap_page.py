"""Page of the HTML picture: its markup, style and script. ``@DATA@`` stands for the JSON, ``@MARK@`` for its maker."""

from __future__ import annotations

__all__ = ["PAGE"]

PAGE = r"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Stragglers</title>
<meta name="generator" content="@MARK@">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #5f6670; --line: #d5d9de; --bad: #a3122b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --paper: #14171a; --soft: #a2a9b2; --line: #3a4047; --bad: #ff8a78; } }
* { box-sizing: border-box; }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 20px 24px; }
h1 { font-size: 19px; margin: 0; } h2 { font-size: 14px; margin: 20px 0 4px; }
.soft, .tick, .left, .right { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; max-height: 330px; overflow-y: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 2px 18px 2px 0; text-align: left; font-size: 13px; white-space: nowrap; vertical-align: top; }
th { color: var(--soft); font-weight: 500; position: sticky; top: 0; background: var(--paper); }
td.much { color: var(--bad); font-weight: 600; } td.why { white-space: normal; min-width: 220px; }
.block { display: grid; grid-template-columns: 150px minmax(0, 1fr) 110px; }
.left, .right { position: relative; font-size: 11px; line-height: 12px; }
.left span, .right span { position: absolute; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.left span { right: 7px; max-width: 143px; } .right span { left: 7px; max-width: 103px; color: var(--bad); }
.middle { position: relative; } canvas { display: block; width: 100%; outline: 1px solid var(--line); }
.right span.clock { left: 24px; max-width: 86px; color: var(--soft); }
.ticks { position: relative; height: 20px; } .tick { position: absolute; font-size: 11px; white-space: nowrap;
  transform: translateX(-50%); padding-top: 5px; }
.tick::before { content: ""; position: absolute; left: 50%; top: 0; height: 5px; border-left: 1px solid var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; align-items: center; font-size: 12px; margin: 8px 0 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend canvas { width: auto; outline-width: 1px; }
#said { position: sticky; top: 0; min-height: 1.6em; background: var(--paper); font-variant-numeric: tabular-nums;
  padding: 2px 0; z-index: 1; }
@media (max-width: 700px) { body { margin: 12px; } .block { grid-template-columns: 84px minmax(0, 1fr) 56px; }
  .left span { max-width: 77px; } .right span { max-width: 49px; } }
</style></head><body>
<h1>Stragglers</h1><div id="title" class="soft"></div>
<h2 id="head">Named slow</h2><div class="wide"><table id="named"></table></div>
<div class="legend soft" id="legend"></div>
<div id="said" class="soft">Point at a cell to read it.</div>
<div id="blocks"></div>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const d = JSON.parse(document.getElementById("data").textContent), C = d.columns;
const unpack = s => Uint8Array.from(atob(s), c => c.charCodeAt(0));
const make = (tag, name, text) => {
  const e = document.createElement(tag); e.className = name || ""; e.textContent = text || ""; return e; };
const scheme = matchMedia("(prefers-color-scheme: dark)");
const MISSING = 0, SOME = 1, NAMED = 129, LOWEST = -25, LEVELS = 127, UNKNOWN = 255;
const percent = code => (code - 2) % LEVELS + LOWEST;
const first = new Map(), last = new Map();
d.columnOf.forEach((column, index) => { if (!first.has(column)) first.set(column, index); last.set(column, index); });
const rowNode = i => d.rows[i][1];

function said(code) {
  if (code === MISSING) return "missing: no answer, or no timings";
  if (code === SOME) return "some ranks missing, the others as fast as their peers";
  const p = percent(code), edge = p === LOWEST ? " or more" : p === LOWEST + LEVELS - 1 ? " or more" : "";
  const much = p === 0 ? "as fast as its peers" : Math.abs(p) + " %" + edge + (p > 0 ? " slower" : " faster") +
    " than its peers";
  return much + (code >= NAMED ? ", named slow" : "");
}
function span(seconds) {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]], out = [];
  let left = Math.round(seconds);
  for (const [size, name] of units) if (left >= size && out.length < 2) {
    out.push(Math.floor(left / size) + " " + name); left %= size; }
  return out.join(" ") || "0 s";
}
function when(column) {
  const a = first.get(column), b = last.get(column);
  if (a === undefined) {
    const gap = d.gaps.find(g => column >= g[0] && column < g[0] + g[1]);
    return gap ? gap[2] : "no report"; }
  const day = new Date(d.times[a] * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC, ";
  const clock = d.clock === "UTC" ? day : "";
  const reports = a === b ? "report " + d.sequences[a] : "reports " + d.sequences[a] + " to " + d.sequences[b];
  return clock + span(d.times[a] - d.times[0]) + " after the first report, " + reports;
}
const hatch = (x, y, period) => (x + y) % period < period / 3;

/* Paint rows of codes at the resolution of the screen; of cells that share a pixel the most important one counts. */
function paint(canvas, codes, rows, high, line) {
  const ratio = devicePixelRatio || 1, W = Math.max(1, Math.round(canvas.clientWidth * ratio));
  const h = Math.max(1, Math.round(high * ratio)), H = rows * h;
  const palette = scheme.matches ? d.dark : d.light, order = d.importance;
  const paper = scheme.matches ? [20, 23, 26] : [255, 255, 255], dim = scheme.matches ? 0.55 : 1.16;
  canvas.width = W; canvas.height = H; canvas.style.height = rows * high + "px";
  const c = canvas.getContext("2d"), image = c.createImageData(W, H), to = image.data;
  const from = new Int32Array(W + 1);
  for (let x = 0; x <= W; x++) from[x] = Math.floor(x * C / W);
  for (let row = 0, p = 0; row < rows; row++) {
    const seen = new Uint8Array(W);
    for (let x = 0; x < W; x++) {
      let best = codes[row * C + from[x]];
      for (let k = from[x] + 1; k < from[x + 1]; k++) {
        const code = codes[row * C + k]; if (order[code] > order[best]) best = code; }
      seen[x] = best;
    }
    for (let y = 0; y < h; y++) for (let x = 0; x < W; x++, p += 4) {
      const code = seen[x], rgb = y >= h - line(row) * ratio ? paper : palette[code];
      const k = code <= SOME && rgb !== paper && hatch(x, row * h + y, 6 * ratio) ? dim : 1;
      to[p] = rgb[0] * k; to[p + 1] = rgb[1] * k; to[p + 2] = rgb[2] * k; to[p + 3] = 255;
    }
  }
  c.putImageData(image, 0, 0);
  return [c, W / C, h, ratio];
}
const one = () => 1;
const labelled = (parent, y, text) => {
  const e = make("span", "", text); e.style.top = y + "px"; e.title = text; parent.append(e); };

function block(title, note) {
  if (title) {
    const head = make("h2", "", title); if (note) { const n = make("span", "soft", "  " + note);
      n.style.fontWeight = 400; head.append(n); } document.getElementById("blocks").append(head); }
  const b = make("div", "block"), canvas = make("canvas");
  const [left, middle, right] = ["left", "middle", "right"].map(name => make("div", name));
  canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", title || note || "");
  middle.append(canvas); b.append(left, middle, right); document.getElementById("blocks").append(b);
  return { left, middle, right, canvas };
}
const drawn = [];
function show(at, rows, tell, draw) {
  const pointed = e => {
    const box = at.canvas.getBoundingClientRect();
    const x = Math.min(C - 1, Math.max(0, Math.floor((e.clientX - box.left) / box.width * C)));
    const y = Math.min(rows - 1, Math.max(0, Math.floor((e.clientY - box.top) / box.height * rows)));
    document.getElementById("said").textContent = when(x) + ": " + tell(x, y);
  };
  at.canvas.onpointermove = pointed; at.canvas.onpointerdown = pointed;
  drawn.push(draw); draw();
}
function ink() { return scheme.matches ? "#ffffff" : "#1b1f24"; }
function outline(c, x0, xn, x1, y, h, ratio) {
  c.strokeStyle = ink(); c.lineWidth = ratio; c.setLineDash([3 * ratio, 3 * ratio]);
  c.strokeRect(x0 + .5, y + .5, Math.max(x1 - x0 - 1, 1), h - 2); c.setLineDash([]);
  marker(c, xn, y, h, ratio);
}
function marker(c, x, y, h, ratio) {
  const s = 4 * ratio, m = y + h / 2;
  c.fillStyle = ink(); c.fillRect(x - ratio, y, 2 * ratio, h);
  c.beginPath(); c.moveTo(x - ratio, m - s); c.lineTo(x - ratio, m + s); c.lineTo(x - ratio - s, m); c.fill();
}

document.getElementById("title").textContent = d.title;
if (!d.named.length) document.getElementById("head").textContent = "Nobody was named slow";
else {
  const table = document.getElementById("named"), top = make("tr");
  for (const t of ["who", "node", "slower by", "in", "since", "named", "until", "for", "because"])
    top.append(make("th", "", t));
  const has = d.named.some(line => line[8]); if (!has) top.lastChild.remove();
  table.append(top);
  for (const line of d.named.slice(0, 500)) {
    const row = make("tr");
    line.slice(0, has ? 9 : 8).forEach((t, i) => row.append(make("td", i === 2 ? "much" : i === 8 ? "why" : "", t)));
    table.append(row); }
  if (d.named.length > 500) {
    const row = make("tr"), cell = make("td", "soft", "and " + (d.named.length - 500) + " more");
    cell.colSpan = 9; row.append(cell); table.append(row); }
}
const legend = document.getElementById("legend");
for (const [name, low, high, from] of [["named slow", d.neutral + 1, d.neutral + 40, 154],
    ["slower by more than " + d.neutral + " %, not named", d.neutral + 1, d.neutral + 40, 27],
    ["within " + d.neutral + " % of the peers", 0, 0, 27], ["faster by more than that", -25, -d.neutral - 1, 27],
    ["missing", 0, 0, 0], ["some of a row's ranks missing", 0, 0, 1]]) {
  const e = make("span"), canvas = make("canvas"); canvas.style.height = "11px";
  drawn.push(() => {
    const palette = scheme.matches ? d.dark : d.light, w = 44, k = scheme.matches ? 0.55 : 1.16;
    canvas.width = w; canvas.height = 11; const c = canvas.getContext("2d");
    for (let x = 0; x < w; x++) for (let y = 0; y < 11; y++) {
      const p = Math.round(low + (high - low) * x / (w - 1));
      const code = from + p;
      const f = code <= SOME && hatch(x, y, 6) ? k : 1;
      c.fillStyle = "rgb(" + palette[code].map(v => Math.min(255, v * f)).join() + ")"; c.fillRect(x, y, 1, 1); } });
  e.append(canvas, name); legend.append(e);
}
legend.append(make("span", "", "◀ the moment of the verdict; dashed: from when until when it was slow"));

if (d.namedRows.length) {
  const more = d.leftOut ? "the slowest " + d.namedRows.length + ", and " + d.leftOut + " more" : "";
  const at = block("Named ranks", more);
  const cells = unpack(d.namedCells), rows = d.namedRows.length, high = 17;
  d.namedRows.forEach(([rank, node], i) => labelled(at.left, i * high + 2, rank + (node ? " · " + node : "")));
  show(at, rows, (x, y) => d.namedRows[y].join(" on ") + ": " + said(cells[y * C + x]), () => {
    const [c, w, h, ratio] = paint(at.canvas, cells, rows, high, one);
    for (const [row, , since, named, until] of d.spans)
      outline(c, since * w, named * w, (until + 1) * w, row * h, h, ratio);
  });
}
const rows = d.rows.length, single = d.rows.every(r => r[0].startsWith("rank "));
const high = Math.max(1, Math.min(18, Math.floor(520 / rows)));
const per = single ? "a rank per row" : "each row shows the slowest of its ranks";
const all = block("All ranks", d.columnOf.length === C - d.gaps.reduce((n, g) => n + g[1], 0) ? per :
  per + ", each column the worst of several reports");
const overview = unpack(d.overview);
for (let i = 0, next = 0, node = null; i < rows; i++) {
  const isNew = rowNode(i) !== node; node = rowNode(i);
  if (i * high < next || (single && high < 12 && !isNew)) continue;
  const who = d.rows[i][0], text = single && high >= 12 ? who + (node ? " · " + node : "") : node || who;
  labelled(all.left, i * high + Math.min(0, (high - 12) / 2) + (high >= 12 ? (high - 12) / 2 : 0), text);
  next = i * high + (high >= 12 ? 12 : 26);
}
/* A line below a rank where there is room for it, a wider one below the last rank of a node. */
const between = i => high < 5 ? 0 : !single || high >= 12 ? 1 : i + 1 < rows && rowNode(i) !== rowNode(i + 1) ? 1.5 : 0;
let end = -99, over = 0;
const marks = new Map(); for (const [row, text] of d.marks) marks.set(row + text, [row, text]);
for (const [row, text] of [...marks.values()].sort((a, b) => a[0] - b[0])) {
  const y = (row + .5) * high - 6; if (y < end) { over++; continue; }
  labelled(all.right, y, text); end = y + 12; }
if (over) labelled(all.right, rows * high + 2, "and " + over + " more");
show(all, rows, (x, y) => d.rows[y].filter(t => t).join(" on ") + ": " + said(overview[y * C + x]), () => {
  const [c, w, h, ratio] = paint(all.canvas, overview, rows, high, between);
  for (const [, row, , named] of d.spans) {
    const tall = Math.max(h, 9 * ratio); marker(c, named * w, row * h + h / 2 - tall / 2, tall, ratio); }
});
const axis = block("", "time");
axis.canvas.remove(); axis.middle.className = "ticks"; labelled(axis.right, 6, d.clock);
axis.right.firstChild.className = "soft clock";
let until = -99;
for (const [place, text] of d.ticks) {
  const e = make("div", "tick", text); e.style.left = 100 * place / C + "%"; axis.middle.append(e);
  const box = e.getBoundingClientRect(); if (box.left < until) e.remove(); else until = box.right + 6; }
if (d.sections.length) d.sections.forEach((s, i) => {
  const at = block(i ? "" : "Sections", i ? s.name : "the slowest rank in each"), cells = unpack(s.cells);
  labelled(at.left, 2, s.name);
  show(at, 1, x => s.name + ", rank " + s.worst[x] + ": " + said(cells[x]), () => paint(at.canvas, cells, 1, 16, one));
});
if (d.waited) {
  const [middle, most] = d.waited.map(unpack);
  const at = block("Lost", "share of their time that the other ranks wait for the last: median, and most");
  labelled(at.left, 0, "100 %"); labelled(at.left, 48, "0 %");
  const tell = x => middle[x] === UNKNOWN ? "not known" :
    "the others wait " + middle[x] + " % of their time (median), " + most[x] + " % at most";
  show(at, 1, tell, () => {
    const ratio = devicePixelRatio || 1, W = Math.round(at.canvas.clientWidth * ratio), H = 60 * ratio;
    at.canvas.width = W; at.canvas.height = H; at.canvas.style.height = "60px";
    const c = at.canvas.getContext("2d"), palette = scheme.matches ? d.dark : d.light;
    for (let x = 0; x < W; x++) {
      const column = Math.floor(x * C / W);
      for (const [shares, code] of [[most, d.neutral + 27 + 10], [middle, d.neutral + 154 + 10]])
        if (shares[column] !== UNKNOWN) {
          c.fillStyle = "rgb(" + palette[code].join() + ")"; c.fillRect(x, H * (1 - shares[column] / 100), 1, H); }
    }
  });
}
let waiting = 0;
const again = () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => drawn.forEach(f => f())); };
drawn.forEach(f => f());
addEventListener("resize", again); scheme.addEventListener("change", again);
document.documentElement.dataset.ready = Math.round(performance.now());
</script></body></html>
"""
