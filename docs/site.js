// The theme puts wide tables into boxes that scroll; by keyboard they scroll if they can have the focus.
new MutationObserver(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) box.tabIndex = 0;
}).observe(document.body, { childList: true, subtree: true });
