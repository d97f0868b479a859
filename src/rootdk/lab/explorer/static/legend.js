// The names of what is drawn, above a figure: as text that wraps, where plotly's own legend would take half of a narrow one.
import { make, rich } from "./elements.js";

const SHAPES = { circle: "●", "circle-open": "○", square: "■", diamond: "◆", x: "✕", cross: "✚", "triangle-up": "▲" };

export function legendOf(data, layout) {
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
export function plainText(text) {
  return String(text).replace(/<sub>(\w)<\/sub>/g, "_$1").replace(/<[^>]*>/g, "");
}
