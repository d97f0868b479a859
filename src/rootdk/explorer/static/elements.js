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

// "d_k" set as a person would write it.
export function rich(text) {
  const parts = String(text).split(/\bd_k\b/);
  const found = document.createDocumentFragment();
  parts.forEach((part, place) => {
    if (place > 0) found.append(make("i", {}, "d", make("sub", {}, "k")));
    found.append(part);
  });
  return found;
}

// The same for an attribute or a title bar, which hold text alone.
export function spoken(text) {
  return String(text).replace(/\bd_k\b/g, "d\u2096");
}

// The formulas of a chapter: of what the server sends, MathML alone gets into the page.
export function formulas(markup) {
  const parsed = new DOMParser().parseFromString(markup, "text/html");
  return [...parsed.querySelectorAll("math")]
    .filter((one) => one.parentElement.closest("math") === null)
    .map((one) => document.importNode(one, true));
}
