// A table of a chapter. What is long in a cell is folded; on a narrow screen each row becomes a card.
import { make, rich } from "./elements.js";

const LONG = 160;

export function showTable(node, table) {
  node.hidden = !table;
  if (!table) return node.replaceChildren();
  // Roles are written out: a browser forgets them when a row is laid out as a card.
  const heads = table.headings.map((one) => (one ? make("th", { scope: "col", role: "columnheader" }, rich(one)) : make("td", { role: "cell" })));
  const rows = table.rows.map((row) => make("tr", { role: "row" },
    row.map((value, column) => cell(value, table.headings[column], column))));
  node.replaceChildren(make("table", { role: "table", class: table.headings.length > 4 ? "many" : "" },
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, heads)), make("tbody", { role: "rowgroup" }, rows)));
}

function cell(value, heading, column) {
  const text = value === null || value === undefined ? "" : String(value);
  const parts = text.split("; ");
  const inside = text.length > LONG && parts.length > 2
    ? make("details", {}, make("summary", {}, `${parts.length} numbers`), make("ul", {}, parts.map((one) => make("li", {}, rich(one)))))
    : rich(text);
  return make("td", { role: "cell", "data-heading": heading, class: [typeof value === "number" ? "figure" : "", column ? "" : "first", text ? "" : "empty"].join(" ").trim() || null }, inside);
}
