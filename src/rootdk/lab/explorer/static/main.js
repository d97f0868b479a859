// The page: reads the address, shows its chapter, asks for a view when a knob moves, and draws what comes.
import { historyOf, readAddress, withoutDefaults, writtenAddress } from "./address.js";
import { auditPicker } from "./audit_file.js";
import { chapterList, neighbours } from "./navigation.js";
import { chapterPage, summary } from "./chapter_page.js";
import { copyOnClick } from "./copying.js";
import { exportedSource } from "./exported_source.js";
import { lastWins } from "./requests.js";
import { Refused, serverSource } from "./server_source.js";
import { rich, spoken } from "./elements.js";
import { themeChoice } from "./theme.js";
import { waiter } from "./waiting.js";

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

const views = lastWins(
  ({ one, now }, signal) => source.view(one, now, signal),
  async (view, { one, now, aloud }) => {
    if (waiting.back() && (await renewed())) return;
    if (one !== chapter) return;
    await page.draw(view);
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
  },
);

// After a while without the server: it may be another release, with other chapters.
async function renewed() {
  const found = await source.described();
  if (found.version === described.version) return false;
  location.reload();
  return true;
}

// A screen reader hears the numbers when a knob has come to rest, not those on the way.
function sayLater(view) {
  clearTimeout(speech);
  speech = setTimeout(() => { byId("told").textContent = summary(view); }, 900);
}

function ask(aloud) {
  views.ask({ one: chapter, now: { ...values }, aloud });
}

function changed(name, text, settled) {
  if (name === null) {
    values = {};
    page.set(values);
  } else {
    values = withoutDefaults(chapter, source.oneAtATime ? { [name]: text } : { ...values, [name]: text });
    if (source.oneAtATime) page.set(values);
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
  if (next !== chapter) open(next, !first);
  values = wanted.chapter === next.id ? withoutDefaults(next, wanted.values) : {};
  page.set(values);
  ask(false);
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
  if (source.note) {
    byId("note").replaceChildren(rich(source.note));
    byId("note").hidden = false;
  }
  follow();
}

start();
