// The address holds the whole state: #chapter?knob=value, with every value that is not the default.

export function readAddress(hash = location.hash) {
  const text = hash.replace(/^#/, "");
  const cut = text.indexOf("?");
  const chapter = decodeURIComponent(cut < 0 ? text : text.slice(0, cut));
  return { chapter, values: Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1))) };
}

export function writtenAddress(chapter, values) {
  const query = new URLSearchParams(values).toString();
  return `#${encodeURIComponent(chapter)}${query ? `?${query}` : ""}`;
}

// A value as text: what the address and the server get.
export function defaultText(control) {
  return String(control.default);
}

// Only what differs from the defaults, so that an address says what someone did.
export function withoutDefaults(chapter, values) {
  const usual = Object.fromEntries(chapter.controls.map((control) => [control.name, defaultText(control)]));
  return Object.fromEntries(Object.entries(values).filter(([name, text]) => usual[name] !== text));
}

// Moves through history: a step when a knob came to rest, not one for every notch on its way. Browsers also slow down
// a page that rewrites its address all the time.
const REST = 1000;

export function historyOf() {
  let lastStep = 0;
  let timer = 0;
  const write = (address) => {
    clearTimeout(timer);
    if (address === location.hash) return;
    const now = performance.now();
    if (now - lastStep > REST) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    lastStep = now;
  };
  return {
    now(address) { lastStep = -REST; write(address); },
    soon(address) { clearTimeout(timer); timer = setTimeout(write, 300, address); },
    forget() { clearTimeout(timer); },
  };
}
