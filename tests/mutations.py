"""Mutations: small slips put into a copy of the source, one at a time, each of which some test must notice.

python tests/mutations.py              all of them; a C++ slip recompiles the kernel and takes minutes
python tests/mutations.py --only 7 9   these
python tests/mutations.py --list       what they are

A slip is killed if the tests named beside it (those that are not slow) fail with it and pass without it. It survived
if they pass all the same: then a test is missing. The package of the copy is imported by path, with the environment's
interpreter and packages; C++ is compiled with the cmake, ninja and nanobind of the environment, in a temporary folder.
Nothing here is changed.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
# A slip can make a loop endless.
SECONDS = 900
# How pytest ends where tests failed, or could not be imported; anything else says nothing about the slip.
_NOTICED = (1, 2)
# An editable install finds its own source before any path, and the copy is to be tested, also by the processes that a
# test starts: Python runs a module of this name at its start.
_AT_THE_START = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable")]
"""
_LEFT_OUT = (".git", ".venv", "build", "dist", "node_modules", "__pycache__", ".*_cache", "_kernel*.so", "*.egg-info")


class Mutation(NamedTuple):
    """One slip: in `file`, `old`, which occurs once, becomes `new`, and `tests` have to notice."""

    slip: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        """Whether the kernel has to be compiled anew."""
        return self.file.startswith(("kernel/", "bindings/"))


_KERNEL_TESTS = ("tests/operator/test_kernel_sweep.py", "tests/operator/test_edges.py")
_GRADIENT_TESTS = ("tests/operator/test_gradient.py",)
_TANGENT_TESTS = ("tests/operator/test_jvp.py",)

MUTATIONS = (
    # Options, readings and scales
    Mutation(
        "causal sees one key too many",
        "src/rootdk/options.py",
        'return left, 0 if checks.truth("causal", options.causal) else right',
        'return left, 1 if checks.truth("causal", options.causal) else right',
        ("tests/operator/test_api.py", "tests/torch/test_against_torch.py"),
    ),
    Mutation(
        "padded keys are not counted when queries are aligned",
        "src/rootdk/options.py",
        "offset = lengths - n_query",
        "offset = n_key - n_query + 0 * lengths",
        ("tests/operator/test_api.py", "tests/operator/test_kernel_sweep.py"),
    ),
    Mutation(
        "values for more keys than there are pass the check",
        "src/rootdk/options.py",
        "elif value[-2] != key[-2]:",
        "elif value[-2] < key[-2]:",
        ("tests/operator/test_errors.py",),
    ),
    Mutation(
        "a position counted from 0 where the rule counts from 1",
        "src/rootdk/scaling.py",
        "growth = unit * _ln(position + 1)",
        "growth = unit * _ln(position)",
        ("tests/operator/test_scaling.py",),
    ),
    Mutation(
        "gates of Qwen3-Next are taken for queries",
        "src/rootdk/audit/families.py",
        'step, first_key = 2 * d if layout == "gated" else d,',
        "step, first_key = d,",
        ("tests/audit/test_checkpoint_families.py",),
    ),
    Mutation(
        "what latent and rotated keys have in common is left out",
        "src/rootdk/audit/heads.py",
        "across = weight @ common",
        "across = 0 * weight @ common",
        ("tests/audit/test_checkpoint_numbers.py",),
    ),
    Mutation(
        "a transposed tensor of torch is read as if it lay by rows",
        "src/rootdk/audit/formats/pickles.py",
        "start + tensor.offset * itemsize, by_columns and not by_rows)",
        "start + tensor.offset * itemsize, False)",
        ("tests/audit/test_checkpoint_formats.py",),
    ),
    Mutation(
        "a scale that divides in a graph multiplies",
        "src/rootdk/audit/formats/traced.py",
        'factor = second if node.kind == "Mul" else 1 / second',
        "factor = second",
        ("tests/audit/test_checkpoint_formats.py",),
    ),
    Mutation(
        "a pickle may name what it likes",
        "src/rootdk/audit/formats/pickles.py",
        'if path in _INERT or (module == "torch" and last.endswith("Storage")):',
        "if path:",
        ("tests/audit/test_checkpoint_files.py",),
    ),
    Mutation(
        "a temperature for q alone, not for q and k",
        "src/rootdk/scaling.py",
        "_Factor(_over_root, ((0.1 * growth + 1.0) ** 2,)),",
        "_Factor(_over_root, (0.1 * growth + 1.0,)),",
        ("tests/operator/test_scaling.py",),
    ),
    Mutation(
        "wrong sign where entropies are merged",
        "src/rootdk/reading.py",
        "return share_a * (a + drop_a) + share_b * (b + drop_b)",
        "return share_a * (a - drop_a) + share_b * (b - drop_b)",
        ("tests/operator/test_reading.py",),
    ),
    Mutation(
        "a factor is missing in Chan's formula",
        "src/rootdk/reading.py",
        "part_a * a + part_b * b + part_a * part_b * difference * difference",
        "part_a * a + part_b * b + part_a * difference * difference",
        ("tests/operator/test_reading.py",),
    ),
    Mutation(
        "sum p^3 once, not twice, in |J|",
        "src/rootdk/reading.py",
        "self.p_squared - 2.0 * self.p_cubed + self.p_squared * self.p_squared",
        "self.p_squared - self.p_cubed + self.p_squared * self.p_squared",
        ("tests/operator/test_reading.py",),
    ),
    # The reference, and torch judged by it
    Mutation(
        "wrong sign in the gradient of a sink",
        "src/rootdk/backends/reference.py",
        "d_sinks[head.head] -= np.where(",
        "d_sinks[head.head] += np.where(",
        ("tests/operator/test_reference.py",),
    ),
    Mutation(
        "the slope of the cap is 1 - tanh",
        "src/rootdk/backends/reference.py",
        "1 - np.tanh(head.raw / compute(problem.softcap)) ** 2",
        "1 - np.tanh(head.raw / compute(problem.softcap))",
        ("tests/operator/test_reference.py",),
    ),
    Mutation(
        "the cap bounds second derivatives at 1",
        "src/rootdk/backends/torch/second.py",
        "logits = problem.softcap * torch.tanh(logits / problem.softcap)",
        "logits = torch.tanh(logits / problem.softcap)",
        ("tests/torch/test_torch_gradient.py",),
    ),
    Mutation(
        "a sink's gradient without the denominator",
        "src/rootdk/backends/torch/eager.py",
        "weight = torch.exp2(logits[:, None] - maximum) / total",
        "weight = torch.exp2(logits[:, None] - maximum)",
        ("tests/torch/test_torch_gradient.py", "tests/torch/test_torch_eager.py"),
    ),
    Mutation(
        "slopes of ALiBi lift far keys in second derivatives",
        "src/rootdk/backends/torch/second.py",
        "logits = logits - lost",
        "logits = logits + lost",
        ("tests/torch/test_torch_gradient.py",),
    ),
    Mutation(
        "second derivatives know no dropout",
        "src/rootdk/backends/torch/second.py",
        "return weights * factors.reshape(weights.shape)",
        "return weights",
        ("tests/torch/test_torch_gradient.py",),
    ),
    # Theory
    Mutation(
        "1/3 for 1/2 in front of E sum p^3",
        "src/rootdk/theory/softmax.py",
        "keys / 2 * key.integral(psi3 * without_1)",
        "keys / 3 * key.integral(psi3 * without_1)",
        ("tests/theory/test_theory_quadrature.py",),
    ),
    Mutation(
        "the component along q is counted twice",
        "src/rootdk/theory/attention.py",
        '(d_k - 1) * average["jacobian_norm_squared"]',
        'd_k * average["jacobian_norm_squared"]',
        ("tests/theory/test_theory_measured.py", "tests/theory/test_theory_quadrature.py"),
    ),
    Mutation(
        "d_k other components, not d_k - 1",
        "src/rootdk/theory/effects.py",
        "size * (1 + (size - 1) * r_query * r_key)",
        "size * (1 + size * r_query * r_key)",
        ("tests/theory/test_theory_scores.py",),
    ),
    Mutation(
        "numbers half as far apart",
        "src/rootdk/theory/formats.py",
        "np.maximum(exponents + 1 - kind.digits, -500)",
        "np.maximum(exponents - kind.digits, -500)",
        ("tests/theory/test_theory_scores.py",),
    ),
    Mutation(
        "the largest logit of one row for that of all rows",
        "src/rootdk/theory/row_law.py",
        "return np.asarray(np.exp(rows * np.log1p(",
        "return np.asarray(np.exp(np.log1p(",
        ("tests/theory/test_theory_measured.py",),
    ),
    Mutation(
        "the variance inside a row as if its mean were known",
        "src/rootdk/theory/prediction.py",
        '"mean_variance": scale * scale * d_k * (keys - 1) / keys,',
        '"mean_variance": scale * scale * d_k,',
        ("tests/theory/test_theory_measured.py",),
    ),
    # The ring
    Mutation(
        "a block that is seen by its last row alone is left out",
        "src/rootdk/distributed/ring.py",
        "visible &= last + problem.right >= keys.first",
        "visible &= last + problem.right > keys.first",
        ("tests/distributed/test_distributed_ring.py",),
    ),
    Mutation(
        "the last gradient is not counted among the messages",
        "src/rootdk/distributed/cost.py",
        "sent_bytes=hops * sum(arriving) + last,",
        "sent_bytes=hops * sum(arriving),",
        ("tests/distributed/test_distributed_cost.py",),
    ),
    # Checks of the lab, and the page
    Mutation(
        "the spread of groups for the error of their mean",
        "src/rootdk/lab/checks/sampler.py",
        "of_groups.std(ddof=1) / math.sqrt(of_groups.size)",
        "of_groups.std(ddof=1)",
        ("tests/lab/test_sampler.py",),
    ),
    Mutation(
        "chance speaks for a claim, not against it",
        "src/rootdk/lab/checks/comparison.py",
        "agrees, disagrees = off + unsure < 0, off - unsure >= 0",
        "agrees, disagrees = off - unsure < 0, off - unsure >= 0",
        ("tests/lab/test_ledger.py",),
    ),
    Mutation(
        "runs that did not collapse are taken for those that did",
        "src/rootdk/lab/checks/learning.py",
        "if collapsed == kind]",
        "if collapsed != kind]",
        ("tests/lab/test_claims_training.py",),
    ),
    Mutation(
        "texts reach the page as they are",
        "src/rootdk/lab/drawing.py",
        '</i>", escape(text))',
        '</i>", text)',
        ("tests/lab/test_report.py",),
    ),
    # Audit
    Mutation(
        "factors of key heads in the order of other query heads",
        "src/rootdk/audit/projections.py",
        "gamma / np.repeat(of_key, self.group)",
        "gamma / np.tile(of_key, self.group)",
        ("tests/audit/test_remedies.py",),
    ),
    # The kernel
    Mutation(
        "sums of squares shrink like sums",
        "kernel/softmax-inl.h",
        "load(rows.square + at) * (f * f) + sums.square * (g * g)",
        "load(rows.square + at) * f + sums.square * g",
        _KERNEL_TESTS,
    ),
    Mutation(
        "a row's last key is hidden, one further is seen",
        "kernel/scores-inl.h",
        "(key_v >= first_v) & (key_v < last_v)",
        "(key_v > first_v) & (key_v <= last_v)",
        _KERNEL_TESTS,
    ),
    Mutation(
        "the limit on the right leaves out its own key",
        "kernel/panel-inl.h",
        "at_most(length, position + problem.right + 1)",
        "at_most(length, position + problem.right)",
        _KERNEL_TESTS,
    ),
    Mutation(
        "cubes shrink like squares where a sink joins",
        "kernel/reading-inl.h",
        "rows.cube[lane] * shrink * shrink * shrink",
        "rows.cube[lane] * shrink * shrink",
        ("tests/operator/test_extremes.py",),
    ),
    Mutation(
        "key heads that share a panel take the values of the first",
        "kernel/few-inl.h",
        "batch, kv_head + row / rows, start)",
        "batch, kv_head, start)",
        ("tests/operator/test_few_rows.py",),
    ),
    Mutation(
        "wrong sign in front of delta",
        "kernel/backward-inl.h",
        "vec<real> d_s = p * (d_p - delta);",
        "vec<real> d_s = p * (d_p + delta);",
        _GRADIENT_TESTS,
    ),
    Mutation(
        "the mean tangent of a row is not taken away",
        "kernel/tangent-inl.h",
        "load(at) - load(sums_out + d * lanes + v) * load(mean + v)",
        "load(at) - load(sums_out + d * lanes + v) * real(0) * load(mean + v)",
        _TANGENT_TESTS,
    ),
    Mutation(
        "a sink's tangent moves the keys with it",
        "kernel/tangent-inl.h",
        "return weight * real(problem.sinks_tangent",
        "return -weight * real(problem.sinks_tangent",
        _TANGENT_TESTS,
    ),
    Mutation(
        "dropout changes the mean tangent",
        "src/rootdk/backends/reference.py",
        "mean = np.where(seen, soft.weights * d_logits, 0).sum(axis=-1)",
        "mean = np.where(seen, soft.weights * dropout_factor * d_logits, 0).sum(axis=-1)",
        _TANGENT_TESTS,
    ),
    Mutation(
        "a tangent is lost in a plain call",
        "src/rootdk/backends/torch/__init__.py",
        "if forward_ad._current_level >= 0 and tangents(",
        "if forward_ad._current_level > 0 and tangents(",
        ("tests/torch/test_torch_forward_mode.py",),
    ),
    Mutation(
        "dropout of a row with the number of the row before",
        "kernel/dropout-inl.h",
        "uint64_t(p.flat + lane + 1)",
        "uint64_t(p.flat + lane)",
        ("tests/operator/test_precision.py", "tests/operator/test_kernel_random.py"),
    ),
    Mutation(
        "a window reaches one key less to the left",
        "kernel/panel-inl.h",
        "at_least(position - problem.left, 0)",
        "at_least(position - problem.left + 1, 0)",
        ("tests/operator/test_kernel_random.py",),
    ),
    Mutation(
        "the compiler decides in each pass whether bias and logits are rounded once or twice",
        "kernel/scores-inl.h",
        "const vec<real> sum = multiply_add(bias, broadcast(real(log2_e)), score);",
        "const vec<real> sum = score + bias * real(log2_e);",
        ("tests/operator/test_few_rows.py",),
    ),
    Mutation(
        "a thread that waits for torch's team does not ask for Ctrl-C",
        "kernel/pool.cc",
        "shared.helpers_left.wait(shared.stop);",
        "shared.helpers_left.wait(nullptr);",
        ("tests/operator/test_kernel_interrupt.py",),
    ),
    Mutation(
        "chosen rows stand where the first rows stand",
        "src/rootdk/options.py",
        "np.ascontiguousarray(array[:, rows])",
        "np.ascontiguousarray(array[:, : np.size(rows)])",
        ("tests/operator/test_read.py",),
    ),
    # Readings on a GPU
    Mutation(
        "blocks of keys are merged as if they were of one size",
        "src/rootdk/backends/torch/gpu_kernel.py",
        "number / tl.maximum(before + number, 1.0)",
        "number / tl.maximum(2 * number, 1.0)",
        ("tests/torch/test_triton.py",),
    ),
    Mutation(
        "of two keys that as many rows point at the last one",
        "src/rootdk/backends/torch/gpu_kernel.py",
        "tl.min(tl.where(used & (votes == most), top, n_key - 1))",
        "tl.max(tl.where(used & (votes == most), top, 0))",
        ("tests/audit/test_watch_gpu.py",),
    ),
    Mutation(
        "the first key of a sequence that is padded on the left is its padding",
        "src/rootdk/backends/torch/gpu_kernel.py",
        "if first_key is not None:",
        "if False:",
        ("tests/audit/test_watch_gpu.py",),
    ),
    Mutation(
        "a learned scale is lost in torch's attention",
        "src/rootdk/backends/torch/gpu.py",
        "query, scale = query * scale.to(query.dtype), 1.0",
        "query, scale = query, 1.0",
        ("tests/torch/test_triton.py",),
    ),
    Mutation(
        "a watch looks at a mask that lies on the device",
        "src/rootdk/audit/watching/call.py",
        "if not added.is_cpu:",
        "if added.is_cuda:",
        ("tests/audit/test_watch_gpu.py",),
    ),
    # Processes: how a command ends, and what it starts
    Mutation(
        "what could not be written is tried again when Python ends",
        "src/rootdk/cli/lifetime.py",
        "        if output is not None:\n            _discard_unwritten(output)",
        "        if output is None:\n            _discard_unwritten(output)",
        ("tests/lab/test_cannot_be_written.py",),
    ),
    Mutation(
        "a full disk is seen by write() and not by flush()",
        "src/rootdk/cli/lifetime.py",
        "self._stream.flush()\n        except OSError as error:",
        "self._stream.flush()\n        except BlockingIOError as error:",
        ("tests/lab/test_cannot_be_written.py",),
    ),
    Mutation(
        "a pipe that is closed is seen by flush() and not by write()",
        "src/rootdk/cli/lifetime.py",
        "return self._stream.write(text)\n        except OSError as error:",
        "return self._stream.write(text)\n        except BlockingIOError as error:",
        ("tests/lab/test_cannot_be_written.py",),
    ),
    Mutation(
        "Ctrl-C is an ordinary failure",
        "src/rootdk/cli/lifetime.py",
        "INTERRUPTED = 128 + signal.SIGINT",
        "INTERRUPTED = 1",
        ("tests/lab/test_interruption.py",),
    ),
    Mutation(
        "Ctrl-C leaves the command's children behind",
        "src/rootdk/cli/lifetime.py",
        "    processes.end_all()\n    files.remove_unfinished()",
        "    files.remove_unfinished()",
        ("tests/lab/test_interruption.py",),
    ),
    Mutation(
        "the number of threads is not given back",
        "src/rootdk/lab/training/engine.py",
        "os.environ[name] = value",
        "os.environ[name] = ONE_THREAD[name]",
        ("tests/lab/test_training_engine.py",),
    ),
    Mutation(
        "modules are taken from where the user stands",
        "benchmarks/__main__.py",
        "del sys.path[0]",
        "sys.path[0] = str(Path.cwd())",
        ("tests/benchmarks/test_bench_children.py",),
    ),
    # Strangers
    Mutation(
        "a body that drips is waited for",
        "src/rootdk/lab/explorer/server.py",
        "in (h11.IDLE, h11.SEND_BODY):",
        "in (h11.IDLE,):",
        ("tests/lab/test_explorer_connections.py",),
    ),
    Mutation(
        "a number of 5000 digits is read",
        "src/rootdk/files.py",
        "len(digits) > _MOST_DIGITS",
        "len(digits) > 100 * _MOST_DIGITS",
        ("tests/audit/test_hostile_checkpoints.py",),
    ),
    Mutation(
        "the first threshold that is crossed, not the worst",
        "src/rootdk/audit/thresholds.py",
        "worst is None or finding.worse_than(worst)",
        "worst is None",
        ("tests/audit/test_health.py",),
    ),
)


class Copy:
    """A copy of the tree in a folder, in which one slip at a time is made and undone."""

    def __init__(self, folder: Path) -> None:
        self.tree, self._build, self._cache = folder / "tree", folder / "build", folder / "cache"
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        compiled = importlib.util.find_spec("rootdk._kernel")
        if compiled is None or compiled.origin is None:
            sys.exit("mutations: rootdk must be installed with its compiled kernel in this environment")
        self._kernel = Path(compiled.origin)
        self._first = folder / "first"
        self._first.mkdir()
        (self._first / "sitecustomize.py").write_text(_AT_THE_START, "utf-8")
        self.restore_kernel()

    def verdict(self, mutation: Mutation) -> str:
        """killed, SURVIVED, or why neither can be said."""
        place = self.tree / mutation.file
        original = place.read_text("utf-8")
        if original.count(mutation.old) != 1:
            return f"no verdict: the text to change occurs {original.count(mutation.old)} times"
        place.write_text(original.replace(mutation.old, mutation.new), "utf-8")
        try:
            if mutation.compiled and not self._compile():
                return "no verdict: it does not compile"
            code = self._tests(mutation.tests)
        finally:
            place.write_text(original, "utf-8")
            if mutation.compiled:
                self.restore_kernel()
        if code == 0:
            return "SURVIVED"
        if code not in _NOTICED:
            return f"no verdict: pytest ended with {code}"
        # A test that fails in any case kills nothing.
        clean = self._tests(("--last-failed", "--last-failed-no-failures=none", *mutation.tests))
        return "killed" if clean == 0 else f"no verdict: what failed does so without it (pytest ended with {clean})"

    def restore_kernel(self) -> None:
        """The compiled module of the environment."""
        shutil.copy2(self._kernel, self.tree / "src" / "rootdk" / self._kernel.name)

    def _tests(self, tests: tuple[str, ...]) -> int:
        # No bytecode: a slip of the same length in the same second would be taken for what was compiled before.
        path = os.pathsep.join([str(self._first), str(self.tree / "src")])
        own = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        options = ["-q", "-x", "-m", "not slow", "-o", f"cache_dir={self._cache}"]
        command = [sys.executable, "-m", "pytest", *options, *tests]
        try:
            ran = subprocess.run(
                command, cwd=self.tree, env=os.environ | own, timeout=SECONDS, check=False, stdout=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            return 1
        return ran.returncode

    def _compile(self) -> bool:
        """Everything for the first slip, afterwards only what a slip changes."""
        path = os.pathsep.join([*_tool_folders(), os.environ.get("PATH", "")])
        nanobind = [sys.executable, "-m", "nanobind", "--cmake_dir"]
        where = subprocess.run(nanobind, check=True, capture_output=True, text=True).stdout.strip()
        settings = ["-DCMAKE_BUILD_TYPE=Release", f"-Dnanobind_DIR={where}", f"-DPython_EXECUTABLE={sys.executable}"]
        cmake = shutil.which("cmake", path=path) or "cmake"
        for command in (
            [cmake, "-S", str(self.tree), "-B", str(self._build), "-G", "Ninja", *settings],
            [cmake, "--build", str(self._build)],
        ):
            log = subprocess.run(command, env=os.environ | {"PATH": path}, check=False, capture_output=True, text=True)
            if log.returncode:
                sys.stderr.write(log.stdout[-2000:] + log.stderr[-2000:])
                return False
        for module in self._build.glob("_kernel*.so"):
            shutil.copy2(module, self.tree / "src" / "rootdk" / module.name)
        return True


def _tool_folders() -> list[str]:
    """Where the environment has cmake and ninja: beside its interpreter, or inside the packages of these names."""
    folders = [str(Path(sys.executable).parent)]
    for package, inside in (("cmake", "data/bin"), ("ninja", "data/bin")):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            site = Path(spec.origin).parents[1]
            # Scripts of packages lie in bin/ beside lib/pythonX.Y/site-packages/.
            folders += [str(Path(spec.origin).parent / inside), str(site.parents[2] / "bin")]
    return folders


def main() -> int:
    """Run, and say which survived; the number of those is the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="some of them, by their numbers")
    parser.add_argument("--list", action="store_true", help="what they are")
    asked = parser.parse_args()
    numbered = [(n, m) for n, m in enumerate(MUTATIONS, 1) if not asked.only or n in asked.only]
    unknown = [n for n in asked.only or () if not 1 <= n <= len(MUTATIONS)]
    if unknown:
        parser.error(f"--only: must be from 1 to {len(MUTATIONS)}, got {unknown[0]}")
    if asked.list:
        for number, mutation in numbered:
            print(f"{number:2}  {mutation.file}: {mutation.slip}  [{' '.join(mutation.tests)}]")
        return 0
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for number, mutation in numbered:
            start = time.monotonic()
            verdicts.append(copy.verdict(mutation))
            taken = time.monotonic() - start
            print(f"{number:2}  {verdicts[-1]:9} {taken:5.0f} s  {mutation.file}: {mutation.slip}", flush=True)
    killed = verdicts.count("killed")
    print(f"{killed} of {len(verdicts)} killed")
    return len(verdicts) - killed


if __name__ == "__main__":
    sys.exit(main())
