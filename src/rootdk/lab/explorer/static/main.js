// The page: reads the address, shows its chapter, asks for a view when a knob moves, and draws what comes.
import { historyOf, readAddress, withoutDefaults, writtenAddress } from "./address.js";
import { auditPicker, chapterList, chapterPage, neighbours, summary } from "./chapter.js";
import { copyOnClick, rich, spoken } from "./elements.js";
import { exportedSource, lastWins, Refused, serverSource, waiter } from "./sources.js";
import { tourOf } from "./tour.js";

const byId = (id) => document.getElementById(id);
const source = exportedSource() ?? serverSource();
const steps = historyOf();
const waiting = waiter(byId("banner"));
let described = null;
let markChapter = null;
let chapter = null;
let page = null;
let picker = null;
let values = {};
let speech = 0;
let tour = null;

const views = lastWins(
  ({ one, now }, signal) => source.view(one, now, signal),
  async (view, { one, now, aloud }) => {
    if (waiting.back() && (await renewed())) return;
    if (one !== chapter) return;
    await page.draw(view);
    // On a phone the texts above the figure would hide what the tour is about.
    if (tour?.running() && matchMedia("(max-width: 860px)").matches) page.node.querySelector("figure")?.scrollIntoView();
    document.documentElement.dataset.drawn = writtenAddress(one.id, now);
    if (aloud) sayLater(view);
  },
  (error, { one, aloud }) => {
    if (one !== chapter) return;
    // Asked again for what the knobs say by then.
    if (!(error instanceof Refused)) return waiting.away(() => ask(aloud));
    waiting.back();
    if (error.parameter.startsWith("audit")) picker?.problem(error.message.replace(/^audit(: |\.)/, ""));
    else page.problem(error.parameter, error.message);
    if (!aloud) notice(`This link cannot be shown: ${error.message}.`);
  },
);

// What is wrong with the address, at the top.
function notice(text) {
  byId("notice").replaceChildren(rich(text));
  byId("notice").hidden = !text;
}

// After a while without the server: it may be another release, with other chapters.
async function renewed() {
  const { version } = await source.described();
  if (version === described.version) return false;
  location.reload();
  return true;
}

// A screen reader hears the numbers when a knob has come to rest, not those on the way.
function sayLater(view) {
  clearTimeout(speech);
  speech = setTimeout(() => { byId("spoken").textContent = summary(view); }, 900);
}

function ask(aloud) {
  views.ask({ one: chapter, now: { ...values }, aloud });
}

function changed(name, text, settled, quiet = false) {
  if (name === null) {
    values = {};
    page.set(values);
  } else {
    values = withoutDefaults(chapter, source.oneAtATime ? { [name]: text } : { ...values, [name]: text });
    if (source.oneAtATime) page.set(values);
    if (quiet) return;
  }
  const address = writtenAddress(chapter.id, values);
  if (settled) steps.now(address); else steps.soon(address);
  ask(true);
}

function open(next, focus) {
  page?.stop();
  page?.figures.clear();
  views.forget();
  clearTimeout(speech);
  chapter = next;
  const place = described.chapters.indexOf(chapter);
  picker = chapter.id === "model" && source.takesAudits ? auditPicker((text) => { source.setAudit(text); ask(true); }) : null;
  page = chapterPage(chapter, place, described.chapters.length, { changed, isBusy: views.busy, extra: picker?.node });
  byId("main").replaceChildren(page.node, neighbours(described.chapters, place));
  markChapter(place);
  document.title = `${spoken(chapter.title)} · rootdk`;
  if (focus) {
    scrollTo(0, 0);
    page.heading.focus({ preventScroll: true });
  }
}

// Shows what the address says: at the start, after a link, and on the way back and forth.
function follow() {
  steps.forget();
  const wanted = readAddress();
  const named = (id) => described.chapters.find((one) => one.id === id);
  const next = named(wanted.chapter) ?? named(described.start) ?? described.chapters[0];
  const first = chapter === null;
  if (next !== chapter) open(next, !first && !tour?.running());
  const known = next.controls.map((control) => control.name);
  const unknown = Object.keys(wanted.values).filter((name) => !known.includes(name));
  notice(wanted.chapter && wanted.chapter !== next.id
    ? `This link names the chapter "${wanted.chapter}", which does not exist. You see the first chapter.`
    : unknown.length ? `This link sets ${unknown.join(", ")}. This chapter has no such knob; it has ${known.join(", ")}.` : "");
  for (const name of unknown) delete wanted.values[name];
  values = wanted.chapter === next.id ? withoutDefaults(next, wanted.values) : {};
  page.set(values);
  ask(false);
}

// Large letters and one figure, for a room of people. Arrow keys lead from chapter to chapter, or through the tour.
function present(on) {
  const root = document.documentElement;
  if (on) root.dataset.mode = "present"; else delete root.dataset.mode;
  byId("present").setAttribute("aria-pressed", String(on));
  page?.figures.again();
}

function pressed(event) {
  const typing = event.target.closest?.("input, select, textarea, [contenteditable], pre, .scroll");
  if (typing || event.altKey || event.ctrlKey || event.metaKey) return;
  const presenting = document.documentElement.dataset.mode === "present";
  const by = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key];
  if (event.key === "Escape") {
    if (tour?.running()) tour.end(); else if (presenting) present(false); else return;
  } else if (by && tour?.running()) tour.move(by);
  else if (by && presenting) {
    const next = described.chapters[described.chapters.indexOf(chapter) + by];
    if (next) location.hash = writtenAddress(next.id, {});
  } else return;
  event.preventDefault();
}

async function start() {
  try {
    described = await source.described();
  } catch {
    waiting.away(start);
    return;
  }
  waiting.back();
  markChapter = chapterList(byId("chapters"), described.chapters);
  themeChoice(byId("theme"), () => page?.figures.again());
  copyOnClick(byId("share"), () => location.href);
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
  addEventListener("popstate", follow);
  addEventListener("keydown", pressed);
  byId("present").addEventListener("click", () => present(document.documentElement.dataset.mode !== "present"));
  if (described.tour?.length) {
    tour = tourOf(byId("steps"), described.tour, () => { document.documentElement.dataset.tour = tour?.running() ? "on" : "off"; });
    byId("tour").hidden = false;
    byId("tour").addEventListener("click", () => tour.start());
  }
  if (source.note) {
    byId("note").replaceChildren(rich(source.note));
    byId("note").hidden = false;
  }
  follow();
}

// Light or dark: as the system has it, unless someone chose. Figures are drawn again when it changes.
const KEPT = "rootdk-theme";

function themeChoice(select, changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");

  function apply(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    changed();
  }

  select.value = kept();
  apply(select.value);
  select.addEventListener("change", () => {
    keep(select.value);
    apply(select.value);
  });
  system.addEventListener("change", changed);
}

// A browser may forbid storage to a page; the choice then lasts as long as the page.
function kept() {
  try {
    return ["light", "dark"].find((one) => one === localStorage.getItem(KEPT)) ?? "";
  } catch {
    return "";
  }
}

function keep(theme) {
  try {
    localStorage.setItem(KEPT, theme);
  } catch { /* nothing to do */ }
}

start();
