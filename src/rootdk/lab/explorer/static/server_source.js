// Where chapters and views come from: the server that sent this page.

export class Refused extends Error {
  constructor({ error, name }, status) {
    super(error);
    this.parameter = name;
    this.status = status;
  }
}

export class Unreachable extends Error {}

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
