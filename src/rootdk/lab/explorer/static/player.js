// Play and pause: moves a knob notch by notch, never faster than the figures follow.
// Where the system asks for less motion it moves by one notch at a press.
import { make, spoken } from "./elements.js";

const PACE = 120;

export function playerOf(label, { atEnd, rewind, step, rest, isBusy }) {
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
