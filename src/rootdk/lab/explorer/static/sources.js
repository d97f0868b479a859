// Where chapters and views come from: the server that sent this page, or the page itself if it was exported; and what
// the page does with answers that come late or not at all.

export class Refused extends Error {
  constructor({ error, name }, status) {
    super(error);
    this.parameter = name;
    this.status = status;
  }
}

class Unreachable extends Error {}

const TIMEOUT = 20000;

export function serverSource() {
  let audit = null; // the text of an audit that was dropped on the page; the server keeps none

  async function ask(path, signal, options = {}) {
    const signals = [AbortSignal.timeout(TIMEOUT), ...(signal ? [signal] : [])];
    let response;
    let answer;
    try {
      response = await fetch(path, { ...options, signal: AbortSignal.any(signals) });
      answer = await response.json();
    } catch (error) {
      throw new Unreachable(String(error), { cause: error });
    }
    if (!response.ok) throw new Refused(answer, response.status);
    return answer;
  }

  return {
    takesAudits: true,
    described: () => ask("/api/chapters"),
    view(chapter, values, signal) {
      const query = new URLSearchParams(values).toString();
      if (chapter.id === "model" && audit !== null) {
        const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: audit };
        return ask(`/api/model?${query}`, signal, options);
      }
      return ask(`/api/view/${encodeURIComponent(chapter.id)}?${query}`, signal);
    },
    setAudit(text) { audit = text; },
  };
}

// Where views come from in an exported page: out of the page itself, which holds them for a list of values of each knob.
export function exportedSource() {
  const held = document.getElementById("exported");
  if (!held) return null;
  let data = null;

  async function unpacked() {
    const bytes = Uint8Array.from(atob(held.textContent.trim()), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  return {
    takesAudits: false,
    oneAtATime: true,
    note: held.dataset.note,
    async described() {
      data ??= await unpacked();
      return data;
    },
    async view(chapter, values) {
      const [name, text] = Object.entries(values)[0] ?? ["", ""];
      const control = chapter.controls.find((one) => one.name === name);
      const held = control?.stops?.map(String) ?? (control?.kind === "flag" ? ["false", "true"] : control?.choices ?? []);
      const view = data.views[chapter.id][control ? name : ""]?.[control ? held.indexOf(text) : 0];
      if (!view) throw new Refused({ error: `${name}: this saved page does not hold ${text}`, name }, 422);
      if (view.error) throw new Refused(view, 422);
      return view;
    },
  };
}

// The last value wins: while an answer is on its way, newer questions replace each other, and only the newest is asked.
// What is on its way is shown when it comes, so that a figure moves during a drag; one that takes long is given up.
const PATIENCE = 250;

export function lastWins(ask, done, failed) {
  let running = null;
  let waiting = null;

  async function run(question) {
    const mine = { stop: new AbortController(), since: performance.now() };
    running = mine;
    try {
      const answer = await ask(question, mine.stop.signal);
      if (mine === running) await done(answer, question);
    } catch (error) {
      if (mine === running) failed(error, question);
    }
    if (mine !== running) return;
    running = null;
    if (waiting) run(taken());
  }

  function taken() {
    const { question } = waiting;
    waiting = null;
    return question;
  }

  return {
    ask(question) {
      waiting = { question };
      if (running && performance.now() - running.since < PATIENCE) return;
      running?.stop.abort();
      run(taken());
    },
    forget() {
      running?.stop.abort();
      running = waiting = null;
    },
    busy: () => running !== null,
  };
}

// What the page says while the server is away, and how it finds it again.
const PAUSES = [500, 1000, 2000, 3000, 5000];

export function waiter(banner) {
  let turn = 0;
  let timer = 0;
  return {
    // Says that the server is away, and tries again by itself.
    away(again) {
      const port = location.port ? ` --port ${location.port}` : "";
      banner.textContent = `The server does not answer. Start it again with: rootdk explore --no-browser${port}. This page then continues by itself.`;
      banner.hidden = false;
      document.documentElement.dataset.server = "away";
      clearTimeout(timer);
      timer = setTimeout(again, PAUSES[Math.min(turn, PAUSES.length - 1)]);
      turn += 1;
    },
    // True if it was away until now.
    back() {
      clearTimeout(timer);
      const was = turn > 0;
      turn = 0;
      banner.hidden = true;
      delete document.documentElement.dataset.server;
      return was;
    },
  };
}
