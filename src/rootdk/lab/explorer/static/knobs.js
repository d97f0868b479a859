// A knob of each kind: a node for the page, and set(text) for a value that comes from the address.
// changed(name, text, settled): settled is false while a slider is still dragged.
import { helpOf, make, rich, spoken } from "./elements.js";
import { defaultText } from "./address.js";
import { matrixKnob } from "./matrix_knob.js";
import { sliderKnob } from "./slider_knob.js";
import { seedKnob } from "./seed_knob.js";
import { stopsOf } from "./stops.js";

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
