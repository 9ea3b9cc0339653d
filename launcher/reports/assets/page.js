"use strict";
// The page can be read without this: it tells what the pointer is on, widens the timeline, and opens what is linked to.
(() => {
  const plot = document.getElementById("plot");

  const open = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", open);
  open();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(each => { each.open = true; }));
  if (!plot) return;

  const width = Number(plot.dataset.width), top = Number(plot.dataset.top), edge = Number(plot.dataset.edge);
  const times = JSON.parse(document.getElementById("times").textContent);
  const said = document.getElementById("said"), cursor = document.getElementById("cursor");
  const areas = document.getElementById("areas"), scroll = document.getElementById("plot-scroll");
  const moving = [...plot.querySelectorAll("[data-x]")], silent = [...plot.querySelectorAll("[data-wide]")];
  const usual = said.textContent;
  let zoom = 1;

  function leave() { said.textContent = usual; cursor.setAttribute("visibility", "hidden"); }
  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect(), x = event.clientX - box.left - edge, y = event.clientY - box.top;
    if (y < top || x < 0 || x > width * zoom) { leave(); return; }
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("transform", `translate(${x.toFixed(1)},0)`);
    const at = times[Math.max(0, Math.min(times.length - 1, Math.floor(x / zoom)))];
    const mark = event.target.closest(".mark");
    if (mark) { said.textContent = mark.querySelector("title").textContent; return; }
    const row = event.target.closest("[data-row]");
    said.textContent = row
      ? `${row.dataset.row}, after ${at}: ${event.target.dataset.n}`
      : `After ${at}`;
  });
  plot.addEventListener("pointerleave", leave);
  // Not at the plot itself: a drawing that listens for the focus can be focused.
  scroll.addEventListener("focusin", event => {
    const mark = event.target.closest(".mark");
    if (mark) said.textContent = mark.querySelector("title").textContent;
  });
  scroll.addEventListener("focusout", leave);

  function widen(times) {
    const middle = (scroll.scrollLeft + scroll.clientWidth / 2 - edge) / (width * zoom);
    zoom = times;
    plot.setAttribute("width", width * zoom + 2 * edge);
    areas.setAttribute("transform", `scale(${zoom},1)`);
    for (const each of moving) each.setAttribute("transform", `translate(${(each.dataset.x * zoom).toFixed(1)},0)`);
    for (const each of silent) {
      each.setAttribute("width", each.dataset.wide * zoom);
      each.setAttribute("x", -each.dataset.wide * zoom);
    }
    scroll.scrollLeft = middle * width * zoom + edge - scroll.clientWidth / 2;
    for (const each of document.querySelectorAll(".widths button")) {
      each.setAttribute("aria-pressed", String(Number(each.value) === zoom));
    }
  }
  for (const each of document.querySelectorAll(".widths button")) {
    each.addEventListener("click", () => widen(Number(each.value)));
  }
  const marks = [...plot.querySelectorAll(".mark")];
  // A window too narrow for it: what is over is read from its begin, if half of it can be seen; else what was seen last.
  const shows = "running" in plot.dataset || scroll.clientWidth < width / 2;
  if (marks.length && shows && scroll.scrollWidth > scroll.clientWidth) {
    const last = marks.reduce((one, other) => Number(other.dataset.x) > Number(one.dataset.x) ? other : one);
    const label = last.querySelector(".pill");
    const from = label ? label.x.baseVal.value : -8, wide = label ? label.width.baseVal.value : 16;
    scroll.scrollLeft = Number(last.dataset.x) + from + edge - Math.max(6, (scroll.clientWidth - wide) / 2);
  }
  document.documentElement.classList.add("has-script");
})();
