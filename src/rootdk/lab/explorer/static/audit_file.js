// The reader's own model: an audit as JSON, dropped on the page or chosen. The server looks at it and keeps nothing.
import { make } from "./elements.js";

const LARGEST = 16 * 2 ** 20; // the server's bound

export function auditPicker(chosen) {
  const input = make("input", { type: "file", accept: ".json,application/json", id: "audit" });
  const shown = make("p", { class: "help" });
  const said = make("p", { class: "problem", role: "status" });
  const node = make("div", { class: "knob audit" }, make("label", { for: "audit" }, "An audit of your model"), input,
    make("p", { class: "help" }, "Drop the file here. Made with: ", make("code", {}, "rootdk audit PATH --json > audit.json")), shown, said);

  async function take(file) {
    if (!file) return;
    said.textContent = "";
    if (file.size > LARGEST) {
      said.textContent = `must be at most ${LARGEST / 2 ** 20} MiB, this file has ${(file.size / 2 ** 20).toFixed(0)}`;
      return;
    }
    shown.textContent = `Shown: ${file.name}`;
    const text = await file.text();
    input.value = ""; // so that the same file can be chosen again when it has changed
    chosen(text);
  }

  input.addEventListener("change", () => take(input.files[0]));
  node.addEventListener("dragover", (event) => { event.preventDefault(); node.classList.add("over"); });
  node.addEventListener("dragleave", () => node.classList.remove("over"));
  node.addEventListener("drop", (event) => {
    event.preventDefault();
    node.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  return { node, problem: (message) => { shown.textContent = ""; said.textContent = message; } };
}
