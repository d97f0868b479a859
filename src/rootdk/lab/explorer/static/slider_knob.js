// A number between bounds: a slider to drag, a field to type in, and where it is offered a button that moves it by itself.
import { helpOf, make, rich, spoken } from "./elements.js";
import { nearest, stopsOf } from "./stops.js";
import { playerOf } from "./player.js";

export function sliderKnob(control, changed, isBusy) {
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

export function shortNumber(value) {
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential().replace("e+", "e");
  return value.toLocaleString("en", { maximumFractionDigits: 6 });
}
