// A short list or a matrix: a field for each number, rows and columns to add or take, and the whole as text to paste.
import { helpOf, make, rich, spoken } from "./elements.js";

export function matrixKnob(control, changed) {
  const id = `knob-${control.name}`;
  const grid = make("div", { class: "matrix", role: "group", "aria-labelledby": `${id}-label` });
  const whole = make("input", { type: "text", class: "whole", id, autocomplete: "off", spellcheck: "false" });
  const inputs = [whole];
  let rows = [];

  function written() {
    return rows.map((row) => row.map((field) => field.value.trim() || "0").join(" ")).join("; ");
  }

  function report(quiet = false) {
    whole.value = written();
    changed(whole.value, true, quiet);
  }

  function draw(numbers) {
    const width = Math.max(...numbers.map((row) => row.length));
    grid.style.setProperty("--columns", width);
    rows = numbers.map((row, i) => row.map((value, j) => {
      const field = make("input", {
        type: "text", inputmode: "decimal", autocomplete: "off", disabled: control.fixed,
        "aria-label": `${spoken(control.label)}, row ${i + 1}, column ${j + 1}`,
      });
      field.value = value;
      field.addEventListener("change", () => report());
      field.addEventListener("keydown", (event) => walk(event, i, j));
      return field;
    }));
    grid.replaceChildren(...rows.flat());
  }

  // Up and down walk through the rows; left and right stay with the text in the field.
  function walk(event, i, j) {
    const to = { ArrowUp: rows[i - 1]?.[j], ArrowDown: rows[i + 1]?.[j] }[event.key];
    if (!to) return;
    event.preventDefault();
    to.focus();
    to.select();
  }

  // quiet: another matrix follows, and only both together make sense.
  function resized(change, quiet) {
    const numbers = rows.map((row) => row.map((field) => field.value));
    change(numbers);
    draw(numbers);
    report(quiet);
  }

  const more = [
    ["+ row", "Add a row", () => rows.length < control.rows, (all) => all.push(all[0].map(() => "0"))],
    ["− row", "Take the last row away", () => rows.length > 1, (all) => all.pop()],
    ["+ column", "Add a column", () => rows[0].length < control.columns, (all) => all.forEach((row) => row.push("0"))],
    ["− column", "Take the last column away", () => rows[0].length > 1, (all) => all.forEach((row) => row.pop())],
  ].filter((one) => !control.fixed && !(one[0].includes("row") && control.rows === 1)
      && !(one[0].includes("column") && control.columns === 1))
    .map(([sign, words, allowed, change]) => {
      const button = make("button", { type: "button", class: "small", "aria-label": `${words}: ${spoken(control.label)}` }, sign);
      button.addEventListener("click", () => {
        if (!allowed()) return;
        knob.partners?.[sign.slice(2)]?.resized(change, true);
        resized(change, false);
      });
      return button;
    });

  whole.addEventListener("change", () => {
    knob.set(whole.value);
    changed(whole.value, true);
  });
  const knob = {
    node: make("div", { class: "knob numbers" },
      make("span", { id: `${id}-label`, class: "label" }, rich(control.label)), grid,
      make("div", { class: "sizes" }, more),
      control.fixed ? null : make("details", {}, make("summary", {}, "as text"),
        make("label", { for: id, class: "unseen" }, `${spoken(control.label)}, as text`), whole),
      helpOf(control)),
    inputs,
    resized,
    set(text) {
      whole.value = text;
      const numbers = text.split(/[;\n]/).map((line) => line.trim().split(/[,\s]+/).filter(Boolean)).filter((row) => row.length);
      if (numbers.length && numbers.every((row) => row.length === numbers[0].length)) draw(numbers);
    },
  };
  return knob;
}
