// Draws a figure when it comes into view, in the page's own colours, and again when light becomes dark. Beside it are
// buttons that save it. plotly.js takes the browser a second, in one piece: so the page opens without it, and it runs
// once the reader moves on from the first screen, before a figure is reached.
(function () {
  "use strict";
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };
  const sources = [...document.querySelectorAll("script[type='application/json'][data-plot]")];
  const shown = new Map();

  function loadPlotly() {
    const held = document.getElementById("plotly");
    if (!held) return;
    const running = document.createElement("script");
    running.textContent = held.textContent;
    held.replaceWith(running);
  }

  const whenIdle = window.requestIdleCallback ?? setTimeout;
  const movesOn = ["scroll", "pointerover", "focusin", "keydown"];
  function loadAhead({ type, target }) {
    if (type === "pointerover" && !target.closest("nav, summary")) return;
    for (const event of movesOn) removeEventListener(event, loadAhead);
    whenIdle(loadPlotly);
  }
  for (const event of movesOn) addEventListener(event, loadAhead, { passive: true });

  function draw(source) {
    loadPlotly();
    const { data, layout } = JSON.parse(source.textContent);
    const ink = colour("--ink"), grid = colour("--grid"), card = colour("--card");
    layout.font = { color: ink, size: 12, family: "system-ui, sans-serif" };
    layout.hoverlabel = { ...layout.hoverlabel, bgcolor: card, bordercolor: grid, font: { color: ink } };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
      layout[axis] = { ...layout[axis], gridcolor: grid, linecolor: grid, tickcolor: grid };
    }
    shown.set(source, data);
    return Plotly.react(source.dataset.plot, data, layout, config);
  }

  // One figure at a time, so that the page answers between two of them.
  const waiting = [];
  async function drawWaiting() {
    // The place of the figure is seen, with its words, before plotly.js runs.
    if (!window.Plotly) await new Promise((next) => { requestAnimationFrame(() => setTimeout(next)); });
    for (let source; (source = waiting[0]); waiting.shift()) {
      await draw(source);
      await new Promise((next) => { setTimeout(next); });
    }
  }

  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      if (waiting.push(target.sourceOfPlot) === 1) drawWaiting();
    }
  }, { rootMargin: "200px" });
  for (const source of sources) {
    const plot = document.getElementById(source.dataset.plot);
    plot.sourceOfPlot = source;
    near.observe(plot);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const source of shown.keys()) draw(source); });
  addEventListener("beforeprint", () => { for (const source of sources) if (!shown.has(source)) draw(source); });

  // The section that is read is marked in the menu.
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const reading = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const link = links.get(target.querySelector("[id]")?.id);
      if (!link || !isIntersecting) continue;
      for (const other of links.values()) other.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const section of document.querySelectorAll("section")) reading.observe(section);

  function save(name, address) {
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
  }

  const asText = (type, text) => `data:${type};charset=utf-8,${encodeURIComponent(text)}`;
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell ?? ""));

  function csvOf(data) {
    const rows = [["name", "x", "y", "value", "two standard errors"]];
    for (const trace of data) {
      const name = String(trace.name ?? trace.type).replace(/<\/?sub>/g, "_").replace(/_$/, "");
      if (trace.z) trace.z.forEach((row, i) => row.forEach((z, j) => rows.push([name, trace.x?.[j] ?? j, trace.y?.[i] ?? i, z, ""])));
      else trace.y.forEach((y, at) => rows.push([name, trace.x?.[at] ?? at, y, "", trace.error_y?.array?.[at] ?? ""]));
    }
    return rows.map((row) => row.map(quoted).join(",")).join("\n");
  }

  // A drawing of the page itself takes its colours along.
  function svgOf(drawing) {
    const copy = drawing.cloneNode(true);
    const { width, height } = drawing.viewBox.baseVal;
    copy.setAttribute("width", 2 * width);
    copy.setAttribute("height", 2 * height);
    copy.setAttribute("color", colour("--ink"));
    return new XMLSerializer().serializeToString(copy);
  }

  async function pngOf(drawing) {
    const image = new Image();
    image.src = asText("image/svg+xml", svgOf(drawing));
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/png");
  }

  for (const figure of document.querySelectorAll("figure")) {
    const plot = figure.querySelector(".plot"), drawing = plot ? null : figure.querySelector("svg");
    const name = (plot ? plot.id : "plot-one-row").replace("plot-", "rootdk-");
    const source = figure.querySelector("script");
    const picture = async (format) => {
      if (drawing) return format === "svg" ? asText("image/svg+xml", svgOf(drawing)) : pngOf(drawing);
      if (!shown.has(source)) await draw(source);
      return Plotly.toImage(plot, { format, width: 900, height: 560, scale: 2 });
    };
    const kinds = {
      SVG: async () => save(`${name}.svg`, await picture("svg")),
      PNG: async () => save(`${name}.png`, await picture("png")),
      CSV: async () => save(`${name}.csv`, asText("text/csv", drawing ? source.textContent : csvOf(JSON.parse(source.textContent).data))),
    };
    const tools = document.createElement("div");
    tools.className = "save";
    for (const [kind, act] of Object.entries(kinds)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = kind;
      button.setAttribute("aria-label", `${kind === "CSV" ? "Data as CSV" : `Save as ${kind}`}: ${figure.querySelector("h2, h3").textContent}`);
      button.title = kind === "CSV" ? "Data as CSV" : `Save as ${kind}`;
      button.addEventListener("click", act);
      tools.append(button);
    }
    figure.querySelector("figcaption").before(tools);
  }
  document.documentElement.dataset.drawn = "yes";
})();
