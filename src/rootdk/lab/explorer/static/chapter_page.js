// A chapter on the page: texts and knobs once, figures and numbers with every change.
import { formulas, make, rich, spoken } from "./elements.js";
import { copyOnClick } from "./copying.js";
import { defaultText } from "./address.js";
import { figuresIn } from "./plots.js";
import { knobOf } from "./knobs.js";
import { showTable } from "./table.js";

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
  const reset = make("button", { type: "button", class: "small reset" }, "All knobs back");
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
