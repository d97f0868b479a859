// A knob of each kind: a node for the page, and set(text) for a value that comes from the address.
// changed(name, text, settled): settled is false while a slider is still dragged.
import { defaultText } from "./address.js";
import { helpOf, make, rich, spoken } from "./elements.js";

export function knobOf(control, changed, isBusy) {
  const made = kindOf(control)(control, (text, settled, quiet) => {
    knob.problem("");
    changed(control.name, text, settled, quiet);
  }, isBusy);
  const problem = make("p", { class: "problem", id: `problem-${control.name}`, role: "status" });
  made.node.append(problem);
  const knob = Object.assign(made, {
    name: control.name,
    problem(message) {
      // The name of the knob stands above: what is wrong with it is enough.
      problem.textContent = message.startsWith(`${control.name}: `) ? message.slice(control.name.length + 2) : message;
      made.node.classList.toggle("wrong", message !== "");
      for (const input of made.inputs) input.setAttribute("aria-invalid", String(message !== ""));
    },
  });
  for (const input of made.inputs) {
    const described = [control.help ? `help-${control.name}` : "", problem.id].filter(Boolean).join(" ");
    input.setAttribute("aria-describedby", described);
  }
  knob.set(defaultText(control));
  return knob;
}

function kindOf(control) {
  if (control.kind === "choice") return control.choices.length > 4 ? listKnob : choiceKnob;
  if (control.kind === "flag") return flagKnob;
  if (control.kind === "numbers") return matrixKnob;
  return control.name === "seed" || stopsOf(control) === null ? seedKnob : sliderKnob;
}

function labelOf(control, value) {
  return control.labels?.[control.choices.indexOf(value)] ?? value;
}

function choiceKnob(control, changed) {
  const inputs = control.choices.map((value) =>
    make("input", { type: "radio", name: `knob-${control.name}`, value, id: `knob-${control.name}-${value}` }));
  const options = inputs.map((input) =>
    make("label", { class: "option" }, input, make("span", {}, rich(labelOf(control, input.value)))));
  const node = make("fieldset", { class: "knob" }, make("legend", {}, rich(control.label)),
    make("div", { class: "options" }, options), helpOf(control));
  for (const input of inputs) input.addEventListener("change", () => changed(input.value, true));
  return { node, inputs, set: (text) => inputs.forEach((input) => { input.checked = input.value === text; }) };
}

function listKnob(control, changed) {
  const input = make("select", { id: `knob-${control.name}` },
    control.choices.map((value) => make("option", { value }, spoken(labelOf(control, value)))));
  const node = make("div", { class: "knob" }, make("label", { for: input.id }, rich(control.label)), input, helpOf(control));
  input.addEventListener("change", () => changed(input.value, true));
  return { node, inputs: [input], set: (text) => { input.value = text; } };
}

function flagKnob(control, changed) {
  const input = make("input", { type: "checkbox", id: `knob-${control.name}` });
  const node = make("div", { class: "knob flag" },
    make("label", { for: input.id }, input, make("span", {}, rich(control.label))), helpOf(control));
  input.addEventListener("change", () => changed(String(input.checked), true));
  return { node, inputs: [input], set: (text) => { input.checked = ["true", "1"].includes(text.toLowerCase()); } };
}

// A number between bounds: a slider to drag, a field to type in, and where it is offered a button that moves it by itself.
function sliderKnob(control, changed, isBusy) {
  const stops = stopsOf(control);
  const id = `knob-${control.name}`;
  const slider = make("input", { type: "range", min: 0, max: stops.length - 1, step: 1, id });
  const field = make("input", {
    type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", class: "value", id: `${id}-typed`,
    "aria-label": `${spoken(control.label)}, typed`,
  });
  const ends = make("div", { class: "ends", "aria-hidden": "true" },
    make("span", {}, shortNumber(stops[0])), make("span", {}, shortNumber(stops.at(-1))));

  function say(text) {
    slider.setAttribute("aria-valuetext", text);
    slider.style.setProperty("--at", `${(100 * slider.value) / slider.max}%`);
  }

  function move(index, settled) {
    slider.value = index;
    field.value = String(stops[index]);
    say(field.value);
    changed(field.value, settled);
  }

  const player = control.play
    ? playerOf(control.label, {
      atEnd: () => Number(slider.value) === stops.length - 1,
      rewind: () => move(0, false),
      step: () => move(Number(slider.value) + 1, false),
      rest: () => changed(field.value, true),
      isBusy,
    })
    : null;

  slider.addEventListener("input", () => { player?.stop(); move(Number(slider.value), false); });
  slider.addEventListener("change", () => changed(field.value, true));
  field.addEventListener("change", () => {
    player?.stop();
    // The list is all there is in an exported page; a server takes any number within the bounds.
    const typed = control.stops ? String(stops[nearest(stops, Number(field.value), control.log)]) : field.value.trim();
    knob.set(typed);
    changed(typed, true);
  });

  const knob = {
    node: make("div", { class: "knob slider" },
      make("div", { class: "head" }, make("label", { for: id }, rich(control.label)), player?.node, field),
      slider, ends, helpOf(control)),
    inputs: [slider, field],
    set(text) {
      const value = Number(text);
      if (Number.isFinite(value)) slider.value = nearest(stops, value, control.log);
      field.value = text;
      say(text);
    },
    stop: () => player?.stop(),
  };
  return knob;
}

function shortNumber(value) {
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential().replace("e+", "e");
  return value.toLocaleString("en", { maximumFractionDigits: 6 });
}

// The values that a slider stops at. Every slider moves over a list of values, so that one key press is one value.
const NOTCHES = 120;
const MOST = 2000;

function stopsOf(control) {
  if (control.stops) return control.stops;
  const { low, high } = control;
  if (typeof low !== "number" || typeof high !== "number" || !(high > low)) return null;
  const spaced = control.log && low > 0 ? geometric(control) : even(control);
  if (!spaced) return null;
  const whole = control.kind === "int";
  const all = [...spaced.map((value) => (whole ? Math.round(value) : tidy(value))), low, high, Number(control.default)];
  return [...new Set(all)].filter((value) => value >= low && value <= high).sort((one, other) => one - other);
}

function nearest(stops, value, log) {
  const place = (x) => (log && x > 0 ? Math.log(x) : x);
  let best = 0;
  stops.forEach((stop, index) => {
    if (Math.abs(place(stop) - place(value)) < Math.abs(place(stops[best]) - place(value))) best = index;
  });
  return best;
}

function even({ kind, low, high, step }) {
  const usual = kind === "int" ? Math.max(1, Math.round((high - low) / NOTCHES)) : (high - low) / NOTCHES;
  const width = step || usual;
  const number = Math.floor((high - low) / width + 1e-9);
  return number > MOST ? null : Array.from({ length: number + 1 }, (_, index) => low + index * width);
}

function geometric({ low, high, step }) {
  const ratio = step > 1 ? step : (high / low) ** (1 / NOTCHES);
  const number = Math.floor(Math.log(high / low) / Math.log(ratio) + 1e-9);
  return Array.from({ length: number + 1 }, (_, index) => Number((low * ratio ** index).toPrecision(3)));
}

// 0.1 + 0.2 is meant to be 0.3 on a slider.
function tidy(value) {
  return Number(value.toPrecision(10));
}

// Play and pause: moves a knob notch by notch, never faster than the figures follow.
// Where the system asks for less motion it moves by one notch at a press.
const PACE = 120;

function playerOf(label, { atEnd, rewind, step, rest, isBusy }) {
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const node = make("button", { type: "button", class: "play" });
  let timer = 0;

  function name() {
    const [sign, word] = timer ? ["❚❚", "Pause"] : still.matches ? ["▸|", "Step"] : ["▶", "Play"];
    node.replaceChildren(make("span", { "aria-hidden": "true" }, sign));
    node.setAttribute("aria-label", `${word}: ${spoken(label)}`);
    node.title = word;
  }

  function stop() {
    if (!timer) return;
    clearInterval(timer);
    timer = 0;
    name();
    rest();
  }

  function onward() {
    if (!node.isConnected || atEnd()) return stop();
    if (!isBusy()) step();
  }

  node.addEventListener("click", () => {
    if (timer) return stop();
    if (still.matches) {
      if (atEnd()) rewind(); else step();
      return rest();
    }
    if (atEnd()) rewind();
    timer = setInterval(onward, PACE);
    name();
  });
  still.addEventListener("change", name);
  name();
  return { node, stop };
}

// A number that is typed and not dragged. The seed has a button for another draw: the next seed, so that it can be named.
function seedKnob(control, changed) {
  const id = `knob-${control.name}`;
  const field = make("input", { type: "text", inputmode: "numeric", autocomplete: "off", class: "value", id });
  const again = control.name === "seed" ? make("button", { type: "button" }, "Draw again") : null;
  const stops = control.stops;

  function next(seed) {
    if (stops) return stops[(stops.indexOf(seed) + 1) % stops.length];
    return Number.isInteger(seed) && seed < control.high ? seed + 1 : control.low ?? 0;
  }

  again?.addEventListener("click", () => {
    field.value = String(next(Number(field.value)));
    changed(field.value, true);
  });
  field.addEventListener("change", () => {
    if (stops && !stops.includes(Number(field.value))) field.value = String(stops[0]);
    changed(field.value.trim(), true);
  });
  return {
    node: make("div", { class: "knob seed" }, make("div", { class: "head" },
      make("label", { for: id }, rich(control.label)), again, field),
    helpOf(control)),
    inputs: [field],
    set: (text) => { field.value = text; },
  };
}

// A short list or a matrix: a field for each number, rows and columns to add or take, and the whole as text to paste.
function matrixKnob(control, changed) {
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
