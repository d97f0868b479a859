// A tour: opens one address after the other, and says what to look at. Moves on by itself if asked to.
import { make, rich } from "./elements.js";

const STEP_PACE = 18000; // ten steps in three minutes

export function tourOf(node, steps, went) {
  let place = -1;
  let timer = 0;
  const text = make("p", { "aria-live": "polite" });
  const count = make("span", { class: "dim" });
  const button = (words, act) => {
    const made = make("button", { type: "button" }, words);
    made.addEventListener("click", act);
    return made;
  };
  const play = button("Play", () => { if (timer) pause(); else run(); });
  const back = button("← Back", () => go(place - 1));
  const next = button("Next →", () => go(place + 1));
  node.replaceChildren(text, make("div", { class: "ways" }, count, back, next, play, button("End the tour", end)));

  function go(to) {
    if (to < 0) return;
    if (to >= steps.length) return end();
    place = to;
    node.hidden = false;
    count.textContent = `${place + 1} of ${steps.length}`;
    back.disabled = place === 0;
    text.replaceChildren(rich(steps[place].text));
    if (location.hash !== steps[place].address) location.hash = steps[place].address;
    went();
  }

  function run() {
    timer = setInterval(() => go(place + 1), STEP_PACE);
    play.textContent = "Pause";
  }

  function pause() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }

  function end() {
    pause();
    place = -1;
    node.hidden = true;
    went();
  }

  return { start: () => { go(0); next.focus(); }, move: (by) => go(place + by), end, running: () => place >= 0 };
}
