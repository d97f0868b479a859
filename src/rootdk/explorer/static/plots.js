// Draws what the chapter sends, in the page's own colours.
import { make, rich, spoken } from "./elements.js";

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false, doubleClick: false };

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// The chapter's layout with the colours of the page. A finger that moves over a figure is to scroll the page.
export function dressed(layout) {
  const ink = colour("--ink"), grid = colour("--grid"), card = colour("--card");
  const found = {
    margin: { l: 48, r: 12, t: 8, b: 44 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    ...layout,
    autosize: true, dragmode: false,
    font: { size: 13, family: "system-ui, sans-serif", ...layout.font, color: ink },
    hoverlabel: { ...layout.hoverlabel, bgcolor: card, bordercolor: grid, font: { color: ink } },
  };
  for (const name of new Set(["xaxis", "yaxis", ...Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key))])) {
    // Room for the names along y. Where a unit is as long on both axes, plotly would go round in circles over it.
    const square = Object.values(layout).some((one) => one?.scaleanchor);
    const automargin = name.startsWith("y") && !square;
    found[name] = { zeroline: false, ...layout[name], automargin, gridcolor: grid, linecolor: grid, tickcolor: grid, zerolinecolor: grid, fixedrange: true };
  }
  return found;
}

// One place per figure, kept while the numbers change: plotly then moves what is there.
export function figuresIn(node) {
  let places = new Map();
  let shown = [];

  function place(figure) {
    const plot = make("div", { class: "plot", id: `plot-${figure.id}`, role: "img", "aria-describedby": `text-${figure.id}` });
    const title = make("h3", { id: `title-${figure.id}` });
    const caption = make("figcaption", { id: `text-${figure.id}` });
    return { plot, title, caption, node: make("figure", { "aria-labelledby": title.id }, title, plot, caption) };
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
      const { plot, title, caption } = places.get(figure.id);
      title.replaceChildren(rich(figure.title));
      caption.replaceChildren(rich(figure.text));
      plot.setAttribute("aria-label", spoken(figure.title));
      if (figure.plot.layout?.height) plot.style.height = `${figure.plot.layout.height}px`;
      await window.Plotly.react(plot, figure.plot.data, dressed(figure.plot.layout ?? {}), CONFIG);
    }
  }

  function clear() {
    for (const { plot } of places.values()) window.Plotly.purge(plot);
    places = new Map();
    node.replaceChildren();
  }

  return { draw, clear, again: () => draw(shown) };
}
