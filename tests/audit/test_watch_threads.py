"""rootdk.watch with several threads, with other patches, and held by nobody: afterwards all is as it was before."""

import gc
import subprocess
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from watched_models import NAMES, PLACES, WIDTH, by_attribute, by_name, model, tokens, torch_as_it_was, written_out

import rootdk
import rootdk.torch

pytestmark = pytest.mark.usefixtures("one_thread")
functional = torch.nn.functional
PATIENCE = 60  # seconds: a guard against a hang, not a bound


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with torch_as_it_was():
        yield


class Padded:
    """A model that nobody watches: in evaluation torch takes its fused path, and where it does not, padding differs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True)
        self.encoder, self.x = nn.TransformerEncoder(layer, 2).eval(), tokens()
        self.padding = torch.arange(20).expand(2, 20) >= torch.tensor([[20], [13]])

    def __call__(self) -> Any:
        with torch.no_grad():
            return self.encoder(self.x, src_key_padding_mask=self.padding)


def in_threads(works: list[Callable[[], Any]]) -> list[Any]:
    """What each returns, run at the same time; an error in a thread is one of the test."""
    results: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        results[index] = works[index]()

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results


class Turns:
    """Lets two threads go through a given order of moments."""

    def __init__(self, *order: str) -> None:
        self.events = {name: threading.Event() for name in order}

    def reached(self, name: str) -> None:
        self.events[name].set()

    def wait(self, name: str) -> None:
        assert self.events[name].wait(PATIENCE), name


@pytest.mark.parametrize("how", [by_name, written_out, by_attribute])
def test_forwards_that_overlap_leave_no_mode_in_any_thread(how: Any) -> None:
    """The second begins while the first runs, and the first ends while the second runs."""
    turns, first = Turns("first runs", "second runs", "first is done"), threading.local()
    first.it = False

    def attend(query: Any, key: Any, value: Any) -> Any:
        if getattr(first, "it", False):
            turns.reached("first runs")
            turns.wait("second runs")
        else:
            turns.reached("second runs")
            turns.wait("first is done")
        return how(query, key, value)

    watched, x, padded = model(attend), tokens(), Padded()
    expected, alone = padded(), model(how)(x)

    def begin(is_first: bool) -> tuple[Any, Any, int]:
        if is_first:
            first.it = True
        else:
            turns.wait("first runs")
        out = watched(x)
        if is_first:
            turns.reached("first is done")
        return out, padded(), torch._C._len_torch_function_stack()

    with rootdk.watch(watched) as watch:
        results = in_threads([lambda: begin(True), lambda: begin(False)])
    for out, beside, modes in results:
        assert modes == 0
        assert torch.equal(out, alone)
        assert torch.equal(beside, expected)
    assert watch.step == 2
    assert list(watch.readings) == NAMES
    assert {reading.step for reading in watch.readings.values()} == {1}
    assert [step for step, *_ in watch.trend.points[NAMES[0]]] == [0, 1]


@pytest.mark.parametrize("how", [by_name, by_attribute])
def test_forwards_of_many_threads_are_counted(how: Any) -> None:
    together, x = threading.Barrier(5), tokens()
    meets = threading.local()

    def attend(query: Any, key: Any, value: Any) -> Any:
        meets.calls = getattr(meets, "calls", 0) + 1
        if meets.calls % len(NAMES) == 2:  # in the middle of every forward all threads are in one
            together.wait(PATIENCE)
        return how(query, key, value)

    watched = model(attend)
    expected = model(how)(x)

    def run() -> tuple[bool, int]:
        same = [torch.equal(watched(x), expected) for _ in range(30)]
        return all(same), torch._C._len_torch_function_stack()

    with rootdk.watch(watched) as watch:
        assert in_threads([run] * 5) == [(True, 0)] * 5
    assert watch.step == 150
    assert sorted([step for step, *_ in watch.trend.points[NAMES[0]]]) == list(range(150))
    assert watch.unread == {}


def test_forwards_of_a_lone_fused_layer_are_counted() -> None:
    torch.manual_seed(0)
    layer, x = nn.TransformerEncoderLayer(WIDTH, 4, 48, batch_first=True).eval(), tokens()
    with torch.no_grad():
        expected = layer(x)

    def run() -> bool:
        with torch.no_grad():
            return all(torch.equal(layer(x), expected) for _ in range(20))

    with rootdk.watch(layer) as watch:
        assert in_threads([run] * 5) == [True] * 5
        assert watch.readings["self_attn"].route == "fused"
    assert watch.step == 100


def test_every_nth_forward_is_read_whatever_thread_it_is_in() -> None:
    watched, x = model(by_name), tokens()
    with rootdk.watch(watched, every=7) as watch:
        in_threads([lambda: [watched(x) for _ in range(10)]] * 4)
    assert watch.step == 40
    assert sorted([step for step, *_ in watch.trend.points[NAMES[0]]]) == list(range(0, 40, 7))


@pytest.mark.parametrize("how", [by_name, by_attribute])
def test_closed_while_another_thread_runs(how: Any) -> None:
    """What is under way ends as if nobody watched, and what was read stays as it was when the watch was closed."""
    turns, x, padded = Turns("runs", "closed"), tokens(), Padded()
    blocked = False

    def attend(query: Any, key: Any, value: Any) -> Any:
        if blocked and not turns.events["runs"].is_set():
            turns.reached("runs")
            turns.wait("closed")
        return how(query, key, value)

    watched = model(attend)
    expected, alone = padded(), watched(x)
    seen = rootdk.watch(watched)
    watched(x)
    before = seen.readings

    def run() -> tuple[Any, Any, int]:
        return watched(x), padded(), torch._C._len_torch_function_stack()

    def close() -> None:
        turns.wait("runs")
        seen.close()
        turns.reached("closed")

    blocked = True
    (out, beside, modes), _ = in_threads([run, close])
    assert modes == 0
    assert torch.equal(out, alone)
    assert torch.equal(beside, expected)
    assert seen.readings is before
    assert [step for step, *_ in seen.trend.points[NAMES[0]]] == [0]
    assert not watched._forward_hooks
    assert not watched._forward_pre_hooks


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_ends_in_an_error_leaves_no_mode_while_the_watch_is_open(error: type[BaseException]) -> None:
    def how(*_: Any) -> Any:
        raise error("no")

    watched, padded = model(how), Padded()
    expected = padded()
    with rootdk.watch(watched) as watch:
        for _ in range(2):
            with pytest.raises(error, match="no"):
                watched(tokens())
            assert torch._C._len_torch_function_stack() == 0
            assert torch.equal(padded(), expected)
    assert watch.step == 2


def test_a_mode_that_a_forward_leaves_on_stays_on() -> None:
    class Other(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **kwargs or {})

    other = Other()

    def how(query: Any, key: Any, value: Any) -> Any:
        if torch.overrides._get_current_function_mode() is not other:
            other.__enter__()
        return by_name(query, key, value)

    watched = model(how)
    with rootdk.watch(watched):
        watched(tokens())
        assert torch.overrides._get_current_function_mode() is other
        other.__exit__(None, None, None)
        assert torch._C._len_torch_function_stack() == 0


def test_a_model_that_calls_itself_is_one_forward() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Any, again: bool = True) -> Any:
            return self.inner(self(x, again=False) if again else x)

    watched = Twice()
    with rootdk.watch(watched) as watch:
        watched(tokens())
        watched(tokens())
    assert watch.step == 2
    assert len(watch.readings) == 2 * len(NAMES)


def test_a_watched_model_can_be_compiled_and_scripted() -> None:
    """What is compiled beside the watch is not read, and what is watched is not in its way."""
    watched, x = model(), tokens()
    expected = watched(x)
    with rootdk.watch(watched) as watch:
        compiled = torch.compile(watched, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x), expected)
    with rootdk.watch(line := nn.Linear(2, 2)):
        assert torch.equal(torch.jit.script(line)(torch.ones(2)), line(torch.ones(2)))
    assert watch.readings == {}


# Other patches.


def places() -> list[tuple[Any, str]]:
    from transformers.modeling_utils import AttentionInterface

    return [*PLACES, (AttentionInterface, "get_interface"), (type(model()), "__call__")]


def on_top(owner: Any, name: str) -> Any:
    """Another library's patch, on whatever is there."""
    inner = getattr(owner, name)

    def patch(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    setattr(owner, name, patch)
    return inner, patch


@pytest.mark.parametrize("place", range(6))
def test_another_patch_stays_when_the_watch_closes(place: int) -> None:
    owner, name = places()[place]
    before = vars(owner).get(name)
    watched, x = model(), tokens()
    expected = watched(x)
    try:
        with rootdk.watch(watched) as watch:
            below, patch = on_top(owner, name)
            assert torch.equal(watched(x), expected)
        assert vars(owner)[name] is patch
        assert watch.step == 1
        assert torch.equal(watched(x), expected)
        assert watch.step == 1
        with rootdk.watch(watched) as again:
            assert torch.equal(watched(x), expected)
        assert vars(owner)[name] is patch
        assert (watch.step, again.step) == (1, 1)
        assert list(again.readings) == NAMES
        # The other takes its patch away and puts back what it found, which was ours; the next watch tidies that.
        setattr(owner, name, below)
        assert torch.equal(watched(x), expected)
        with rootdk.watch(watched) as last:
            assert torch.equal(watched(x), expected)
        assert vars(owner).get(name) is before
        assert (watch.step, again.step, last.step) == (1, 1, 1)
    finally:
        if before is None:
            if name in vars(owner):
                delattr(owner, name)
        else:
            setattr(owner, name, before)


def test_a_patch_that_replaces_the_function_is_what_is_read_by_the_next_watch() -> None:
    """It never calls what it found, so only a watch on top of it sees the call."""
    before, x = functional.scaled_dot_product_attention, tokens()
    first_model, second_model = model(), model()
    calls = []

    def replaced(query: Any, key: Any, value: Any, is_causal: bool) -> Any:
        calls.append(is_causal)
        return written_out(query, key, value)

    first = rootdk.watch(first_model)
    functional.scaled_dot_product_attention = replaced
    try:
        with rootdk.watch(second_model) as second:
            second_model(x)
            first_model(x)
        first.close()
        assert functional.scaled_dot_product_attention is replaced
    finally:
        functional.scaled_dot_product_attention = before
    assert calls == [True] * 6
    assert list(first.readings) == list(second.readings) == NAMES
    assert {reading.route for reading in second.readings.values()} == {"sdpa"}


def test_a_patch_that_was_there_before_and_is_taken_away_stays_away() -> None:
    before = functional.scaled_dot_product_attention
    _, patch = on_top(functional, "scaled_dot_product_attention")
    assert functional.scaled_dot_product_attention is patch
    with rootdk.watch(model()) as watch:
        functional.scaled_dot_product_attention = before
        watch.model(tokens())
    assert functional.scaled_dot_product_attention is before


def test_another_patch_stays_when_use_ends() -> None:
    before, x = functional.scaled_dot_product_attention, tokens()
    watched = model()
    expected = watched(x)
    try:
        with rootdk.torch.use():
            _, patch = on_top(functional, "scaled_dot_product_attention")
            on_rootdk = watched(x)
            with rootdk.watch(watched) as watch:
                assert torch.equal(watched(x), on_rootdk)
        assert functional.scaled_dot_product_attention is patch
        assert torch.equal(watched(x), expected)
        assert not torch.equal(on_rootdk, expected)
    finally:
        functional.scaled_dot_product_attention = before
    assert list(watch.readings) == NAMES


def test_a_function_imported_while_watched_is_transparent_afterwards() -> None:
    watched, x = model(), tokens()
    with rootdk.watch(watched) as watch:
        imported = functional.scaled_dot_product_attention
        assert imported.__name__ == "scaled_dot_product_attention"
    q = torch.randn(3, 2, 4, 20, 8)
    assert torch.equal(imported(*q), functional.scaled_dot_product_attention(*q))
    with rootdk.watch(watched) as again:
        imported(*q)
        watched(x)
    assert (watch.step, again.step) == (0, 1)


# Nobody holds it.


def test_a_dropped_watch_is_closed_and_frees_the_model() -> None:
    before = [getattr(owner, name) for owner, name in PLACES]
    collecting = gc.isenabled()
    gc.disable()  # so that the last reference alone decides
    try:
        watched = model(by_name)
        seen = rootdk.watch(watched)
        watched(tokens())
        gone, freed = weakref.ref(seen), weakref.ref(watched)
        with pytest.warns(ResourceWarning, match=r"unclosed Watch\(Model, 3 layers, step 1, open\)") as caught:
            del seen
        assert len(caught) == 1
        assert gone() is None
        assert [getattr(owner, name) for owner, name in PLACES] == before
        assert "__call__" not in vars(type(watched))
        watched(tokens())
        del watched
        assert freed() is None
    finally:
        if collecting:
            gc.enable()


def test_a_watch_dropped_in_a_cycle_is_closed_by_the_collector() -> None:
    watched = model()
    freed = weakref.ref(watched)
    gc.collect()
    holder = types.SimpleNamespace(seen=rootdk.watch(watched))
    holder.itself = holder
    watched(tokens())
    del watched
    del holder
    with pytest.warns(ResourceWarning, match="unclosed Watch"):
        gc.collect()
    assert freed() is None


def test_a_closed_watch_is_dropped_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = rootdk.watch(model())
        watch.model(tokens())
        watch.close()
        freed = weakref.ref(watch.model)
        del watch
        with rootdk.watch(model()) as watch:
            watch.model(tokens())
        with pytest.raises(rootdk.ArgumentError):
            rootdk.watch(model(), every=0)
    gc.collect()
    assert freed() is None


def test_a_watch_that_is_open_when_the_program_ends_does_no_harm() -> None:
    program = (
        "import torch, rootdk\n"
        "layer = torch.nn.TransformerEncoderLayer(32, 4, 48, batch_first=True)\n"
        "seen = rootdk.watch(layer)\n"
        "layer(torch.randn(2, 5, 32))\n"
        "layer.itself = [seen]\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_watches_opened_and_closed_in_many_threads_leave_nothing() -> None:
    """Switching threads as often as Python can, so that openings and closings fall into each other."""
    before, often = [getattr(owner, name) for owner, name in PLACES], sys.getswitchinterval()
    x, padded = tokens(), Padded()
    expected = padded()

    def run(how: Any) -> bool:
        watched = model(how)
        for _ in range(15):
            with rootdk.watch(watched, rows=3) as watch:
                watched(x)
            if watch.step != 1 or list(watch.readings) != NAMES:
                return False
        return torch._C._len_torch_function_stack() == 0 and torch.equal(padded(), expected)

    sys.setswitchinterval(1e-6)
    try:
        assert in_threads([lambda: run(by_name), lambda: run(by_attribute), lambda: run(written_out)]) == [True] * 3
    finally:
        sys.setswitchinterval(often)
    assert [getattr(owner, name) for owner, name in PLACES] == before
