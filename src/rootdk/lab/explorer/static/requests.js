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
