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
      const key = new URLSearchParams(values).toString();
      const views = data.views[chapter.id];
      return views[key] ?? views[""];
    },
  };
}
