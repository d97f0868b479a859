// A button that copies a text, and says so for a moment.

export function copyOnClick(button, text) {
  const usual = button.textContent;
  let timer = 0;
  button.addEventListener("click", async () => {
    const done = await copied(text());
    button.textContent = done ? "Copied" : "Not allowed here";
    clearTimeout(timer);
    timer = setTimeout(() => { button.textContent = usual; }, 1500);
  });
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
