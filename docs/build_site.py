"""Builds the site: python docs/build_site.py FOLDER. `make docs` does that, in build/site.

The pages are the documents of this repository, read here and written nowhere else: the guide is cut at its headings, links between
documents become links between pages, pictures are drawn by the package, the claims are checked, the explorer is exported, and the
reference is what the docstrings say. Built strictly: a link or an anchor that leads nowhere is an error.
"""

import argparse
import inspect
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]

# Where a document of the repository is on the site.
PAGES = {
    "docs/quickstart.md": "quickstart.md",
    "docs/faq.md": "faq.md",
    "docs/install.md": "install.md",
    "docs/audit.md": "guides/watch-and-audit.md",
    "docs/audit-models.md": "project/audited-models.md",
    "docs/training.md": "guides/training.md",
    "docs/scaling.md": "guides/distributed.md",
    "docs/gpu.md": "guides/gpu.md",
    "docs/jax.md": "guides/jax.md",
    "docs/why-root-dk.md": "learn/why-root-dk.md",
    "docs/statements.md": "learn/statements.md",
    "docs/explorer.md": "learn/explorer.md",
    "docs/limits.md": "project/limits.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "kernel/README.md": "project/kernel.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "DESIGN.md": "project/design/index.md",
    **{
        f"docs/design/{file.name}": f"project/design/{file.name}"
        for file in sorted((ROOT / "docs/design").glob("*.md"))
    },
}
# Headings of docs/guide.md that make a page of their own, by its place and title.
GUIDE = {
    ("guides/operator.md", "The operator"): (
        "Attention on arrays",
        "A reading of every query row",
        "The gradient of arrays, and the derivative along a direction",
    ),
    ("guides/torch.md", "torch and transformers"): ("torch and transformers", "A model in training"),
    ("guides/theory.md", "Theory, and which scale"): ("Which scale?",),
    ("guides/commands.md", "The command line"): (
        "Why the root of d_k, and is it true?",
        "A model on disk",
        "More than one machine",
        "Commands",
    ),
}
# Pictures under the title of a page, by the name that `rootdk figures` gives them.
PICTURES = {
    "guides/operator.md": ("one-row-4", "one-row-512"),
    "guides/torch.md": ("flow",),
    "guides/theory.md": ("entropy-dk", "trace-dk"),
    "guides/gpu.md": ("trace-dk",),
    "guides/jax.md": ("entropy-dk",),
    "guides/commands.md": ("scores-none", "scores-sqrt"),
    "guides/watch-and-audit.md": ("layers",),
    "guides/training.md": ("best-digits-400-steps", "curves-recall-1500-steps-layers-2-width-32-256"),
    "guides/distributed.md": ("efficiency",),
    "guides/claims.md": ("jacobian-1.0", "premises"),
    "learn/why-root-dk.md": ("variance", "entropy-sigma"),
    "learn/explorer.md": ("one-row-64",),
}
MODULES = ("rootdk", "rootdk.scaling", "rootdk.theory", "rootdk.torch", "rootdk.jax", "rootdk.audit", "rootdk.integrations", "rootdk.distributed",
           "rootdk.lab.checks", "rootdk.lab.training", "rootdk.lab.report")  # fmt: skip


def build(folder: Path, explorer: Callable[[], str] | None = None) -> None:
    """The whole site, or an error. explorer makes the exported page; a test has a smaller one."""
    from mkdocs.commands.build import build as build_pages
    from mkdocs.config import load_config

    from rootdk.lab.explorer.export import exported_page

    with tempfile.TemporaryDirectory() as place:
        source = Path(place)
        for path, text in pages():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_text(text, "utf-8", newline="\n")
        draw(source / "pictures")
        for name in ("site.css", "site.js"):
            (source / name).write_bytes((ROOT / "docs" / name).read_bytes())
        (source / "learn").mkdir(exist_ok=True)
        (source / "learn" / "page.html").write_text((explorer or exported_page)(), "utf-8", newline="\n")
        os.environ["ROOTDK_SITE_SOURCE"], os.environ["ROOTDK_SITE"] = place, str(folder.resolve())
        config = load_config(str(ROOT / "docs" / "mkdocs.yml"), strict=True)
        build_pages(config)
    for file in folder.rglob("*.html"):
        if file.name != "page.html":
            file.write_text(accessible(file.read_text("utf-8")), "utf-8", newline="\n")


def accessible(page: str) -> str:
    """What the theme leaves out: a name for its dialog, and no heading where a table has an empty cell."""
    page = page.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", page)


def pages() -> Iterator[tuple[str, str]]:
    """Path and text of every page."""
    yield "index.md", linked(home(), "README.md", "index.md")
    for document, page in PAGES.items():
        yield page, pictured(page, linked((ROOT / document).read_text("utf-8"), document, page))
    sections = dict(_sections((ROOT / "docs" / "guide.md").read_text("utf-8")))
    missing = {*sections} - {heading for headings in GUIDE.values() for heading in headings}
    if missing:
        raise SystemExit(f"docs/build_site.py: GUIDE must have a page for {', '.join(sorted(missing))}")
    for (page, title), headings in GUIDE.items():
        body = "\n".join(f"## {heading}\n{sections[heading]}" for heading in headings)
        yield page, pictured(page, linked(f"# {title}\n\n{body}", "docs/guide.md", page))
    yield "guides/claims.md", pictured("guides/claims.md", claims())
    for module in MODULES:
        yield f"reference/{module}.md", f"# {module}\n\n::: {module}\n"


def home() -> str:
    """The README, without what a site says better: its list of documents and its licence."""
    text = (ROOT / "README.md").read_text("utf-8").partition("## Read on")[0]
    return text.replace("](docs/spread.svg)", "](pictures/spread.svg)") + (
        "## Read on\n\n"
        "- [Quickstart](docs/quickstart.md): five minutes.\n"
        "- [Why the root of d_k](docs/why-root-dk.md): the argument in words, with numbers that are computed.\n"
        "- [The explorer](docs/explorer.md), and [the page itself](learn/page.html): move a knob and see why.\n"
        "- Guides for [arrays](docs/guide.md), [torch](docs/guide.md#torch-and-transformers), [watching and auditing](docs/audit.md),"
        " [training](docs/training.md) and [several machines](docs/scaling.md).\n"
    )


def _sections(guide: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^## ", guide, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        yield heading, body


def linked(text: str, document: str, page: str) -> str:
    """Links of a document as links of its page; what has no page, such as a script, keeps its words alone."""
    guide = {heading: path for (path, _), headings in GUIDE.items() for heading in headings}

    def moved(link: re.Match[str]) -> str:
        words, target, anchor = link["words"], link["target"], link["anchor"] or ""
        if "://" in target or target.startswith(("pictures/", "learn/")) or not target:
            return link[0]
        wanted = os.path.normpath(PurePosixPath(document).parent / target)
        if wanted == "docs/guide.md":
            heading = next((name for name in guide if _slug(name) == anchor.removeprefix("#")), "Attention on arrays")
            wanted, anchor = guide[heading], ""
        elif wanted == "docs/design":
            wanted = "project/design/index.md"
        elif wanted in PAGES:
            wanted = PAGES[wanted]
        else:
            return words if link["image"] == "" else ""
        return f"{link['image']}[{words}]({os.path.relpath(wanted, PurePosixPath(page).parent)}{anchor})"

    return re.sub(r"(?P<image>!?)\[(?P<words>[^\]]*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)", moved, text)


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def pictured(page: str, text: str) -> str:
    """With its pictures after the first paragraph."""
    if page not in PICTURES:
        return text
    up = os.path.relpath("pictures", PurePosixPath(page).parent)
    shown = [
        f"<figure markdown>\n![{CAPTIONS[name]}]({up}/{name}.svg){{ .drawn }}\n<figcaption>{CAPTIONS[name]}</figcaption>\n</figure>"
        for name in PICTURES[page]
    ]
    title, first, body = (*text.split("\n\n", 2), "")[:3]
    if not first[:1].isalpha():  # no paragraph to read first
        first, body = "", f"{first}\n\n{body}"
    pictures = '<div class="pictures" markdown>\n' + "\n".join(shown) + "\n</div>"
    return "\n\n".join([title, *filter(None, [first]), pictures, body])


CAPTIONS = {
    "one-row-4": "Weights of one row at d_k = 4: similar under every scale",
    "one-row-64": "Weights of one row at d_k = 64 under three scales",
    "one-row-512": "Weights of one row at d_k = 512: without a scale one key has everything",
    "flow": "The gradient that reaches the query, against d_k, under three scales",
    "entropy-dk": "Entropy share against d_k: constant under 1/sqrt(d_k), falling without a scale",
    "trace-dk": "Trace of the softmax Jacobian against d_k under three scales",
    "scores-none": "The law of the scores without a scale: wider as d_k grows",
    "scores-sqrt": "The law of the scores times 1/sqrt(d_k): the same at every d_k",
    "layers": "An audit, layer by layer: the logits of a small model under no scale, 1/sqrt(d_k) and 1/d_k, beside theory",
    "best-digits-400-steps": "Lowest loss of small models of images against d_k, each rule at the best of the learning rates that were tried",
    "curves-recall-1500-steps-layers-2-width-32-256": "Loss along training at d_k = 256: without a scale it is learned several times later",
    "efficiency": "Efficiency of a ring against the number of ranks, by the model of its cost",
    "jacobian-1.0": "The Jacobian of one row whose logits have standard deviation 1",
    "premises": "The variance of scores when the premise is wrong: theory and measurement",
    "variance": "The variance of a score is d_k, whatever the law of the components",
    "entropy-sigma": "Entropy against the standard deviation of the logits: where softmax freezes",
}


def draw(folder: Path) -> None:
    """Every picture that a page shows, by the package."""
    from rootdk.audit.running import demonstrate
    from rootdk.cli.figures import write_figure
    from rootdk.lab.answer import rows_pictures
    from rootdk.lab.checks import EXPERIMENTS, Cache, plan, run_all
    from rootdk.lab.report.audit_page import spread_pictures
    from rootdk.lab.report.training_page import chapters
    from rootdk.lab.training import shipped

    pictures = [*rows_pictures(), efficiency(), *spread_pictures(demonstrate().to_dict())]
    for result in run_all(plan("quick"), cache=Cache()):
        pictures += EXPERIMENTS[result.experiment].pictures(result)
    for _, drawn in chapters(shipped()):
        pictures += drawn
    folder.mkdir()
    by_name = {picture.name: picture for picture in pictures}
    for name in {name for names in PICTURES.values() for name in names}:
        write_figure(by_name[name], folder, 4.2)
    (folder / "spread.svg").write_bytes((ROOT / "docs" / "spread.svg").read_bytes())


def efficiency() -> Any:
    """A ring of ranks as its cost is predicted: 2 Tflop/s each, 12 GB/s to the next."""
    from rootdk.distributed.cost import Ring, cost
    from rootdk.lab.drawing import HUES, Picture, line, plot, ticks_at

    ranks = [2**power for power in range(1, 11)]
    lines = []
    for tokens, colour in zip((65_536, 1_048_576), HUES, strict=False):
        rings = [Ring(tokens=tokens, heads=32, d=128, ranks=count, flops=2e12, bandwidth=12e9) for count in ranks]
        lines.append(line(ranks, [cost(ring)["forward"].efficiency for ring in rings], f"{tokens:,} tokens", colour))
    figure = plot(lines, "ranks", "efficiency, forward", xaxis=ticks_at(ranks), yaxis={"range": [0, 1.05]})
    return Picture("efficiency", "Efficiency of a ring", "", figure)


def claims() -> str:
    """Every claim with its verdict, as it is checked now."""
    from rootdk.lab.checks import LEDGER, Sampling

    lines = ["# Claims, checked", "", "What is said about the scale, in our words. Each claim is checked by code, and its verdict follows from",
             "the evidence: `rootdk claims --evidence` prints all of it.", "",
             "| | claim | verdict | |", "|---|---|---|---|"]  # fmt: skip
    for claim in LEDGER.check(sampling=Sampling(rows=1024)):
        cells = (str(claim.id), escaped(claim.statement), f"**{claim.verdict}**", escaped(claim.condition or ""))
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that is no Markdown: signs that would be read as marks are kept as signs."""
    return re.sub(r"([*_`\[\]])", r"\\\1", text).replace("<", "&lt;")


class Docstrings(griffe.Extension):
    """Docstrings of this package are set as text: tables of arguments become lists, examples become code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for everything that it loads."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """A function that takes what another one does is shown with those arguments, as help() shows it."""
        if any(str(decorator.value).startswith("takes(") for decorator in func.decorators):
            function = getattr(import_module(func.module.path), func.name)
            func.parameters = griffe.Parameters(
                *(
                    griffe.Parameter(
                        name,
                        kind=griffe.ParameterKind[argument.kind.name.lower()],
                        annotation=inspect.formatannotation(argument.annotation),
                        default=None if argument.default is argument.empty else repr(argument.default),
                    )
                    for name, argument in inspect.signature(function).parameters.items()
                )
            )


_ENTRY = re.compile(r"^(?P<name>[\w.|]+(?:, [\w.|]+)*)  +(?P<text>\S.*)$")


def as_markdown(docstring: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(_block(block) for block in re.split(r"\n[ \t]*\n", docstring.strip("\n")))


def _block(block: str) -> str:
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        return "```pycon\n" + "\n".join(line.removeprefix("    ") for line in lines) + "\n```"
    if all(line.startswith("    ") for line in lines):
        return "```text\n" + "\n".join(line[4:] for line in lines) + "\n```"
    if _ENTRY.match(lines[0]):
        entries: list[str] = []
        for line in lines:
            entry = _ENTRY.match(line)
            if entry:
                entries.append(f"- `{entry['name']}` {escaped(entry['text'])}")
            else:
                entries[-1] += f" {escaped(line.strip())}"
        return "\n".join(entries)
    # What stands between backticks is code already.
    return "`".join(part if number % 2 else escaped(part) for number, part in enumerate(block.split("`")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    logging.basicConfig(level=logging.WARNING)
    wanted = parser.parse_args().folder
    build(wanted)
    print(
        f"The site is in {wanted}: open {wanted / 'index.html'}; its search needs a server, such as: python -m http.server -d {wanted}"
    )
