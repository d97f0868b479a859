// Draws every figure that the page holds as JSON, in the page's own colours, and again when light becomes dark.
(function () {
  "use strict";
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const config = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };

  function draw() {
    const ink = colour("--ink"), grid = colour("--grid"), card = colour("--card");
    for (const source of document.querySelectorAll("script[type='application/json'][data-plot]")) {
      const figure = JSON.parse(source.textContent);
      const layout = figure.layout;
      layout.font = { color: ink, size: 12, family: "system-ui, sans-serif" };
      layout.hoverlabel = Object.assign({}, layout.hoverlabel, { bgcolor: card, bordercolor: grid, font: { color: ink } });
      for (const axis of ["xaxis", "yaxis"]) {
        layout[axis] = Object.assign({}, layout[axis], { gridcolor: grid, linecolor: grid, tickcolor: grid });
      }
      Plotly.react(source.dataset.plot, figure.data, layout, config);
    }
    document.documentElement.dataset.drawn = "yes";
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
