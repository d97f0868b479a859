"""The modules of the page as one script, for a file that can load nothing.

No tool is needed: the modules import by name from files beside them and export what they declare, so that one after the
other in one scope they mean the same, as long as no two of them use a name for different things. That is checked.
"""

import re
from collections.abc import Mapping

from rootdk.errors import RootdkError

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |class |const )", re.MULTILINE)
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


class BundleError(RootdkError):
    """The modules cannot be one script."""


def imports_of(module: str) -> list[str]:
    r"""Which files a module imports from.

    >>> imports_of('import { make, rich } from "./elements.js";\n')
    ['elements.js']
    """
    return _IMPORT.findall(module)


def bundle(modules: Mapping[str, str], first: str = "main.js") -> str:
    r"""One script: every module that `first` needs, each after those that it imports.

    >>> print(bundle({"main.js": 'import { a } from "./a.js";\na();\n', "a.js": "export function a() {}\n"}))
    (() => {
    "use strict";
    function a() {}
    a();
    })();
    """
    ordered: dict[str, str] = {}
    _collect(first, modules, ordered, ())
    owner: dict[str, str] = {}
    for name, text in ordered.items():
        for declared in _DECLARED.findall(text):
            if declared in owner:
                raise BundleError(f"{declared}: must be declared in one module, is in {owner[declared]} and {name}")
            owner[declared] = name
    body = "".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in ordered.values())
    if left := re.search(r"^(?:import|export)\b.*", body, re.MULTILINE):
        raise BundleError(f"modules: must import and export by name, got {left[0]}")
    return f'(() => {{\n"use strict";\n{body}}})();'


def _collect(name: str, modules: Mapping[str, str], found: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise BundleError(f"modules: must not import in a circle, got {' -> '.join((*above, name))}")
    if name in found:
        return
    for one in imports_of(modules[name]):
        _collect(one, modules, found, (*above, name))
    found[name] = modules[name]
