// Light or dark: as the system has it, unless someone chose. Figures are drawn again when it changes.

const KEPT = "rootdk-theme";

export function themeChoice(select, changed) {
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
