// A number that is typed and not dragged. The seed has a button for another draw: the next seed, so that it can be named.
import { helpOf, make, rich } from "./elements.js";

export function seedKnob(control, changed) {
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
