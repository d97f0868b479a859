// A chapter on the page: texts and knobs once, figures and numbers with every change.
import { defaultText, writtenAddress } from "./address.js";
import { copyOnClick, formulas, make, rich, spoken } from "./elements.js";
import { knobOf } from "./knobs.js";
import { figuresIn } from "./plots.js";

export function chapterPage(chapter, place, count, { changed, isBusy, extra }) {
  const heading = make("h1", { id: "heading", tabindex: "-1" }, rich(chapter.title));
  const knobs = chapter.controls.map((control) => knobOf(control, changed, isBusy));
  // Where two matrices must fit each other, a row or a column is added to both.
  chapter.controls.forEach((control, index) => {
    const partner = (name) => knobs[chapter.controls.findIndex((other) => other.name === name)];
    knobs[index].partners = { row: partner(control.rows_with), column: partner(control.columns_with) };
  });
  const lead = make("p", { class: "lead", hidden: true });
  const numbers = make("dl", { class: "live" });
  const pictures = make("div", { class: "figures" });
  const table = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table", hidden: true });
  const code = make("code");
  const copy = make("button", { type: "button", class: "small" }, "Copy");
  copyOnClick(copy, () => code.textContent);
  const figures = figuresIn(pictures);
  const reset = make("button", { type: "button", class: "small reset" }, "Reset all knobs");
  reset.addEventListener("click", () => changed(null, null, true));
  const general = make("p", { class: "problem", role: "status" });

  const node = make("article", { "aria-labelledby": "heading", class: chapter.controls.length ? "" : "without-knobs" },
    make("header", {},
      make("p", { class: "count" }, `Chapter ${place + 1} of ${count}`), heading,
      make("div", { class: "formula" }, formulas(chapter.formula))),
    lead,
    make("dl", { class: "guide" },
      make("div", {}, make("dt", {}, "Try"), make("dd", {}, rich(chapter.to_try))),
      make("div", {}, make("dt", {}, "See"), make("dd", {}, rich(chapter.to_see)))),
    make("div", { class: "bench" },
      make("section", { class: "knobs", "aria-label": "Knobs" }, extra, knobs.map((knob) => knob.node), general,
        chapter.controls.length ? reset : null),
      make("div", { class: "shown" }, pictures,
        make("dl", { class: "versus" },
          make("div", { class: "said" }, make("dt", {}, "What is usually said"), make("dd", {}, rich(chapter.said))),
          make("div", { class: "true" }, make("dt", {}, "What is true"), make("dd", {}, rich(chapter.true)))),
        numbers)),
    table,
    make("section", { class: "python", "aria-labelledby": "python" },
      make("div", { class: "head" }, make("h2", { id: "python" }, "The same in Python"), copy),
      make("pre", { tabindex: "0", "aria-labelledby": "python" }, code)));

  return {
    node, heading, figures,
    set(values) {
      knobs.forEach((knob, index) => {
        knob.problem("");
        knob.set(values[knob.name] ?? defaultText(chapter.controls[index]));
      });
      general.textContent = "";
    },
    async draw(view) {
      for (const knob of knobs) knob.problem("");
      general.textContent = "";
      lead.replaceChildren(rich(view.lead ?? ""));
      lead.hidden = !view.lead;
      showNumbers(numbers, view.numbers);
      showTable(table, view.table);
      code.textContent = view.python;
      await figures.draw(view.figures);
    },
    problem(name, message) {
      const knob = knobs.find((one) => one.name === name);
      if (knob) knob.problem(message);
      else general.textContent = message;
    },
    stop() { for (const knob of knobs) knob.stop?.(); },
  };
}

function showNumbers(node, numbers) {
  if (node.dataset.ids !== numbers.map((one) => one.id).join()) {
    node.dataset.ids = numbers.map((one) => one.id).join();
    node.replaceChildren(...numbers.map((one) => make("div", { class: `number ${one.kind}`, "data-id": one.id },
      make("dt", {}, make("span", { class: "kind" }), " ", make("span")), make("dd"))));
  }
  numbers.forEach((one, index) => {
    const [term, value] = node.children[index].children;
    term.firstElementChild.textContent = one.kind;
    term.lastElementChild.replaceChildren(rich(one.label));
    value.textContent = one.text;
  });
}

// One short sentence for a screen reader, when a knob has come to rest.
export function summary(view) {
  return view.numbers.slice(0, 4).map((one) => `${spoken(one.label)}: ${one.text}`).join("; ");
}

// A table of a chapter. What is long in a cell is folded; on a narrow screen each row becomes a card.
const LONG = 160;

function showTable(node, table) {
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

// The reader's own model: an audit as JSON, dropped on the page or chosen. The server looks at it and keeps nothing.
const LARGEST = 16 * 2 ** 20; // the server's bound

export function auditPicker(chosen) {
  const input = make("input", { type: "file", accept: ".json,application/json", id: "audit" });
  const shown = make("p", { class: "help" });
  const said = make("p", { class: "problem", role: "status" });
  const node = make("div", { class: "knob audit" }, make("label", { for: "audit" }, "An audit of your model"), input,
    make("p", { class: "help" }, "Drop the file here. Made with: ", make("code", {}, "rootdk audit PATH --json > audit.json")), shown, said);

  async function take(file) {
    if (!file) return;
    said.textContent = "";
    if (file.size > LARGEST) {
      said.textContent = `must be at most ${LARGEST / 2 ** 20} MiB, this file has ${(file.size / 2 ** 20).toFixed(0)}`;
      return;
    }
    shown.textContent = `Shown: ${file.name}`;
    const text = await file.text();
    input.value = ""; // so that the same file can be chosen again when it has changed
    chosen(text);
  }

  input.addEventListener("change", () => take(input.files[0]));
  node.addEventListener("dragover", (event) => { event.preventDefault(); node.classList.add("over"); });
  node.addEventListener("dragleave", () => node.classList.remove("over"));
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    node.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  return { node, problem: (message) => { shown.textContent = ""; said.textContent = message; } };
}

// The list of chapters, and the way to the one before and after.
const NARROW = "(max-width: 860px)";

export function chapterList(node, chapters) {
  const links = chapters.map((chapter) => make("a", { href: writtenAddress(chapter.id, {}) }, make("span", {}, rich(chapter.title))));
  const current = make("span");
  const folded = make("details", { class: "list" }, make("summary", {}, make("span", { class: "unseen" }, "Chapters, now: "), current),
    make("ol", {}, links.map((link) => make("li", {}, link))));
  node.replaceChildren(folded);
  // A column beside the chapter where there is room, a line above it to unfold where there is none.
  const narrow = matchMedia(NARROW);
  const fold = () => { folded.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
  return (place) => {
    links.forEach((link, index) => (index === place ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    current.replaceChildren(`${place + 1} of ${chapters.length}: `, rich(chapters[place].title));
    fold();
  };
}

export function neighbours(chapters, place) {
  const way = (chapter, words, side) => (chapter
    ? make("a", { class: side, rel: side, href: writtenAddress(chapter.id, {}) }, make("span", { class: "way" }, words), make("span", {}, rich(chapter.title)))
    : make("span"));
  return make("nav", { class: "neighbours", "aria-label": "Chapter before and after" },
    way(chapters[place - 1], "← before", "prev"), way(chapters[place + 1], "next →", "next"));
}
