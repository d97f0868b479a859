// The values that a slider stops at. Every slider moves over a list of values, so that one key press is one value.
const NOTCHES = 120;
const MOST = 2000;

export function stopsOf(control) {
  if (control.stops) return control.stops;
  const { low, high } = control;
  if (typeof low !== "number" || typeof high !== "number" || !(high > low)) return null;
  const spaced = control.log && low > 0 ? geometric(control) : even(control);
  if (!spaced) return null;
  const whole = control.kind === "int";
  const all = [...spaced.map((value) => (whole ? Math.round(value) : tidy(value))), low, high, Number(control.default)];
  return [...new Set(all)].filter((value) => value >= low && value <= high).sort((one, other) => one - other);
}

export function nearest(stops, value, log) {
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
