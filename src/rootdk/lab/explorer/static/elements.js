// Elements and texts: nothing that comes from elsewhere is ever read as HTML.

// make("p", { class: "dim" }, "text", child)
export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

// "d_k" and "q_i" set as a person would write them.
const SUBSCRIPT = /\b([A-Za-z])_([a-z])\b/;

export function rich(text) {
  const whole = document.createDocumentFragment();
  // Between backticks: what is typed.
  String(text).split("`").forEach((part, place) => whole.append(place % 2 ? make("code", {}, part) : withSubscripts(part)));
  return whole;
}

function withSubscripts(text) {
  const whole = document.createDocumentFragment();
  const parts = String(text).split(SUBSCRIPT);
  for (let place = 0; place < parts.length; place += 3) {
    whole.append(parts[place]);
    if (place + 2 < parts.length) whole.append(make("i", {}, parts[place + 1], make("sub", {}, parts[place + 2])));
  }
  return whole;
}

// The same for an attribute or a title bar, which hold text alone.
export function spoken(text) {
  return String(text).replace(/\bd_k\b/g, "d\u2096").replace(new RegExp(SUBSCRIPT, "g"), "$1 $2").replaceAll("`", "");
}

// The sentence below a knob.
export function helpOf(control) {
  return control.help ? make("p", { class: "help", id: `help-${control.name}` }, rich(control.help)) : null;
}

// The formulas of a chapter: of what the server sends, MathML alone gets into the page.
export function formulas(markup) {
  const parsed = new DOMParser().parseFromString(markup, "text/html");
  return [...parsed.querySelectorAll("math")]
    .filter((one) => one.parentElement.closest("math") === null)
    .map((one) => document.importNode(one, true));
}

// A button that copies a text, and says so for a moment.
export function copyOnClick(button, text) {
  const usual = button.textContent;
  let timer = 0;
  button.addEventListener("click", async () => {
    const done = await copied(text());
    button.textContent = done ? "Copied" : "Not allowed here";
    clearTimeout(timer);
    timer = setTimeout(() => { button.textContent = usual; }, 1500);
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
