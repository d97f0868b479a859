// The list of chapters, and the way to the one before and after.
import { make, rich } from "./elements.js";
import { writtenAddress } from "./address.js";

const NARROW = "(max-width: 860px)";

export function chapterList(node, chapters) {
  const links = chapters.map((chapter) => make("a", { href: writtenAddress(chapter.id, {}) }, make("span", {}, rich(chapter.title))));
  const current = make("span");
  const folded = make("details", { class: "list" }, make("summary", {}, make("span", { class: "unseen" }, "Chapters, now: "), current),
    make("ol", {}, links.map((link) => make("li", {}, link))));
  node.replaceChildren(folded);
  // A column beside the chapter where there is room, a line above it to unfold where there is none.
  const narrow = matchMedia(NARROW);
  const fold = () => { folded.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
  return (place) => {
    links.forEach((link, index) => (index === place ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current")));
    current.replaceChildren(`${place + 1} of ${chapters.length}: `, rich(chapters[place].title));
    fold();
  };
}

export function neighbours(chapters, place) {
  const way = (chapter, words, side) => (chapter
    ? make("a", { class: side, rel: side, href: writtenAddress(chapter.id, {}) }, make("span", { class: "way" }, words), make("span", {}, rich(chapter.title)))
    : make("span"));
  return make("nav", { class: "neighbours", "aria-label": "Chapter before and after" },
    way(chapters[place - 1], "← before", "prev"), way(chapters[place + 1], "next →", "next"));
}
