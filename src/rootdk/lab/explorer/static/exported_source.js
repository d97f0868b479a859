// Where views come from in an exported page: out of the page itself, which holds them for a list of values of each knob.
import { Refused } from "./server_source.js";

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
