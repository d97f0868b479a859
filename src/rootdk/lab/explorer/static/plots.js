// Draws what the chapter sends, in the page's own colours.
import { make, rich, spoken } from "./elements.js";

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: false };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The chapter's layout with the colours of the page. A finger that moves over a figure is to scroll the page.
function dressed({ data, layout = {} }, width, height) {
  const ink = colour("--ink"), grid = colour("--grid"), card = colour("--card");
  const presented = document.documentElement.dataset.mode === "present";
  const dress = {
    margin: { l: 48, r: 12, t: 8, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    ...layout,
    // Numbers in the cells of a map; plotly would choose black for pale cells, also on a dark page.
    template: { data: { heatmap: [{ textfont: { color: ink } }] } },
    autosize: true, dragmode: false, showlegend: false,
    font: { size: presented ? 20 : 13, family: "system-ui, sans-serif", ...layout.font, color: ink },
    hoverlabel: { ...layout.hoverlabel, bgcolor: card, bordercolor: grid, font: { color: ink } },
  };
  for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))])) {
    // Room for what stands along an axis. Where a unit is as long on both axes, plotly would go round in circles over it.
    const square = Object.values(layout).some((one) => one?.scaleanchor);
    const words = data.some((trace) => typeof trace.x?.[0] === "string");
    const automargin = !square && (name.startsWith("y") || words);
    dress[name] = { zeroline: false, ...layout[name], automargin, gridcolor: grid, linecolor: grid, tickcolor: grid, zerolinecolor: grid, fixedrange: true };
    if (name.startsWith("x") && dress[name].dtick === 1) dress[name] = { ...dress[name], dtick: decades(data), tickangle: 0 };
  }
  for (const [name, room] of [["xaxis", width - 100], ["yaxis", height - 60]]) {
    const title = dress[name].title?.text ?? "";
    const fitting = inTwoLines(title, room);
    if (fitting === title) continue;
    dress[name] = { ...dress[name], title: { ...dress[name].title, text: fitting } };
    if (name === "xaxis") dress.margin = { ...dress.margin, b: dress.margin.b + 16 };
  }
  if (presented) dress.margin = { ...dress.margin, b: dress.margin.b + 24 };
  return dress;
}

// A title that is longer than its axis is broken near its middle; a letter takes some 8 pixels.
function inTwoLines(text, room) {
  if (text.length * 8 < room || !text.includes(" ")) return text;
  const middle = text.length / 2;
  const gaps = [...text.matchAll(/ /g)].map((one) => one.index);
  const best = gaps.reduce((one, other) => (Math.abs(other - middle) < Math.abs(one - middle) ? other : one));
  return `${text.slice(0, best)}<br>${text.slice(best + 1)}`;
}

// Every decade has a tick until there are too many of them for a narrow figure.
function decades(data) {
  const x = data.flatMap((trace) => trace.x ?? []).filter((value) => value > 0);
  const span = x.length ? Math.log10(x.reduce((one, other) => Math.max(one, other)) / x.reduce((one, other) => Math.min(one, other))) : 1;
  return Math.max(1, Math.ceil(span / 5));
}

// One place per figure, kept while the numbers change: plotly then moves what is there.
export function figuresIn(node) {
  let places = new Map();
  let shown = [];

  function place(figure) {
    const plot = make("div", { class: "plot", id: `plot-${figure.id}`, role: "img", "aria-describedby": `text-${figure.id}` });
    const title = make("h2", { id: `title-${figure.id}` });
    const caption = make("figcaption", { id: `text-${figure.id}` });
    const names = make("div");
    return { plot, title, names, caption, node: make("figure", { "aria-labelledby": title.id }, title, names, plot, caption) };
  }

  async function draw(figures) {
    shown = figures;
    if (figures.map((one) => one.id).join() !== [...places.keys()].join()) {
      clear();
      places = new Map(figures.map((one) => [one.id, place(one)]));
      node.replaceChildren(...[...places.values()].map((one) => one.node));
      node.dataset.count = figures.length;
    }
    for (const figure of figures) {
      const { plot, title, names, caption } = places.get(figure.id);
      title.replaceChildren(rich(figure.title));
      caption.replaceChildren(rich(figure.text));
      names.replaceChildren(legendOf(figure.plot.data, figure.plot.layout ?? {}) ?? "");
      plot.setAttribute("aria-label", spoken(figure.title));
      if (figure.plot.layout?.height) plot.style.height = `${figure.plot.layout.height}px`;
      await window.Plotly.react(plot, figure.plot.data, dressed(figure.plot, plot.clientWidth, plot.clientHeight), CONFIG);
    }
  }

  function clear() {
    for (const { plot } of places.values()) window.Plotly.purge(plot);
    places = new Map();
    node.replaceChildren();
  }

  return { draw, clear, again: () => draw(shown) };
}

// The names of what is drawn, above a figure: as text that wraps, where plotly's own legend would take half of a narrow one.
const SHAPES = { circle: "●", "circle-open": "○", square: "■", diamond: "◆", x: "✕", cross: "✚", "triangle-up": "▲" };

function legendOf(data, layout) {
  const named = data.filter((trace) => trace.name && trace.showlegend !== false && trace.visible !== false);
  const wanted = layout.showlegend ?? (named.length > 1 || named.some((trace) => trace.showlegend === true));
  if (!wanted || named.length === 0) return null;
  return make("ul", { class: "legend" }, named.map((trace) => make("li", {}, swatch(trace), make("span", {}, rich(plainText(trace.name))))));
}

// Told apart by shape as well as by colour, as in the figure.
function swatch(trace) {
  const colour = firstOf(trace.marker?.color) ?? trace.line?.color ?? trace.fillcolor;
  const lines = trace.type === "scatter" && (trace.mode ?? "lines").includes("lines");
  const node = make("span", { "aria-hidden": "true", class: lines ? `line ${trace.line?.dash ?? "solid"}` : "mark" });
  if (!lines) node.textContent = trace.type === "scatter" ? SHAPES[firstOf(trace.marker?.symbol) ?? "circle"] ?? "●" : "■";
  const shown = lines ? trace.line?.color ?? colour : colour;
  if (shown) node.style.color = shown;
  return node;
}

function firstOf(value) {
  return Array.isArray(value) ? value.find((one) => typeof one === "string") : value;
}

// plotly's texts may hold a few tags.
function plainText(text) {
  return String(text).replace(/<sub>(\w)<\/sub>/g, "_$1").replace(/<[^>]*>/g, "");
}
