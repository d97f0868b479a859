// What the page says while the server is away, and how it finds it again.

const PAUSES = [500, 1000, 2000, 3000, 5000];

export function waiter(banner) {
  let turn = 0;
  let timer = 0;
  return {
    // Says that the server is away, and tries again by itself.
    away(again) {
      const port = location.port ? ` --port ${location.port}` : "";
      banner.textContent = `The server does not answer. Start it again with: rootdk explore --no-browser${port}. This page goes on by itself.`;
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
