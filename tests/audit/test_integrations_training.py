"""Models that train with a log, a Trainer or Lightning: what is read when, QK-clip, and several processes."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from training_models import KEYS, LAYERS, TOKENS, WIDTH, batches, encoder, lines, train

import rootdk
from rootdk.audit.remedies import clip_to_
from rootdk.errors import ArgumentError
from rootdk.integrations import TrainingLog, lightning_callback, trainer_callback

pytestmark = pytest.mark.usefixtures("one_thread")
TAU = 4.0
STEPS = 6


def largest(model: nn.Module, data: list[torch.Tensor]) -> list[float]:
    """The largest score of each layer over some batches, by a watch of its own."""
    highest = [-torch.inf] * LAYERS
    model.train()
    for batch in data:
        with rootdk.watch(model) as watch, torch.no_grad():
            model(batch)
        tops = [float(reading.metrics["max_score"].max()) for reading in watch.readings.values()]
        highest = [max(pair) for pair in zip(highest, tops, strict=True)]
    return highest


def tops(seen: Any) -> list[float]:
    """The largest logit of each layer in the last forward."""
    return [float(reading.metrics["max_logit"].max()) for reading in seen.readings.values()]


# --- a loop of one's own


def test_training_is_the_same_with_and_without_a_log(tmp_path: Path) -> None:
    plain, logged = encoder(), encoder()
    train(plain, batches(3), lambda: None)
    with TrainingLog(tmp_path / "a.jsonl").start(logged) as log:
        train(logged, batches(3), log.after_step)
    for parameter, other in zip(plain.parameters(), logged.parameters(), strict=True):
        assert torch.equal(parameter, other)
    assert not logged._forward_hooks


@pytest.mark.parametrize("every", [1, 2, 4])
def test_every_counts_steps_of_the_optimizer(tmp_path: Path, every: int) -> None:
    """Three forwards make a step here, and an evaluation runs in between; only what is due is read."""
    model, data = encoder(), batches(5)
    seen = []
    with TrainingLog(tmp_path / "a.jsonl", every=every).start(model) as log:
        for _ in range(5):
            before = log.watch.seconds
            for batch in data[:3]:
                model(batch).sum().backward()
            log.after_step()
            seen.append(log.watch.seconds > before + 1e-4)
            log.pause()
            model(100 * data[3])
            log.resume()
    assert [line["step"] for line in lines(tmp_path / "a.jsonl")] == list(range(1, 6, every))
    assert seen == [step % every == 0 for step in range(5)]


def test_an_evaluation_is_not_taken_for_training(tmp_path: Path) -> None:
    model, (batch, other) = encoder(), batches(2)
    with TrainingLog(tmp_path / "a.jsonl").start(model) as log:
        model(batch)
        log.pause()
        model(100 * other)
        log.resume()
        log.after_step(7)
    (line,) = lines(tmp_path / "a.jsonl")
    assert line["step"] == 7
    assert line["attn/max_score"] == max(largest(model, [batch]))


def test_a_step_in_which_nothing_was_read_says_so_once(tmp_path: Path) -> None:
    model = encoder()
    with TrainingLog(tmp_path / "a.jsonl").start(model) as log, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(batches(1)[0])
        log.after_step()
        log.after_step()  # the reading of before is not written again
        log.after_step()
    assert [str(warning.message).partition(":")[0] for warning in caught] == ["rootdk"]
    assert "no attention was read in step 2" in str(caught[0].message)
    assert len(lines(tmp_path / "a.jsonl")) == 1


def test_clip_acts_after_the_step_on_what_the_forward_showed(tmp_path: Path) -> None:
    """At a learning rate of 0 the next forward shows the clip alone: layer 1 at tau, layer 0 as it was."""
    model, data = encoder(loud=30.0), batches(1)
    quiet, loud = largest(model, data)
    assert quiet < TAU < loud / 4
    with TrainingLog(tmp_path / "a.jsonl", clip_tau=TAU).start(model) as log:
        train(model, data * 2, log.after_step, rate=0.0)
    assert largest(model, data) == pytest.approx([quiet, TAU], rel=1e-5)
    first, second = lines(tmp_path / "a.jsonl")
    assert first["attn/layer_01/max_score"] == pytest.approx(loud)  # as the forward was, before the clip
    assert second["attn/layer_01/max_score"] == pytest.approx(TAU, rel=1e-5)
    assert first["attn/layer_00/qk_clip"] == 1.0
    assert first["attn/layer_01/qk_clip"] == first["attn/qk_clip"] == pytest.approx(TAU / loud, rel=1e-5)
    assert second["attn/qk_clip"] == pytest.approx(1.0, rel=1e-5)


def test_clip_goes_by_all_forwards_of_a_step(tmp_path: Path) -> None:
    model, (batch, other) = encoder(loud=30.0), batches(2)
    tops = [largest(model, [inputs])[1] for inputs in (batch, other)]
    data = [batch, other] if tops[0] > tops[1] else [other, batch]  # the larger one first
    with TrainingLog(tmp_path / "a.jsonl", clip_tau=TAU).start(model) as log:
        for inputs in data:
            model(inputs)
            log.after_forward()
        log.after_step()
    assert largest(model, data)[1] == pytest.approx(TAU, rel=1e-5)


def test_a_layer_that_cannot_be_clipped_is_refused_in_the_first_step(tmp_path: Path) -> None:
    class Bare(nn.Module):
        def forward(self, x: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(Bare())
    with TrainingLog(tmp_path / "a.jsonl", clip_tau=1e6).start(model) as log:
        model(torch.randn(1, 2, TOKENS, 8))
        with pytest.raises(ArgumentError, match=r"0"):
            log.after_step()


# --- transformers


def llama(loud: float = 1.0) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight *= loud
    return model


def run_trainer(folder: Path, callbacks: list[Any], model: Any, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    tokens = torch.randint(0, 32, (2 * STEPS * options.get("gradient_accumulation_steps", 1), TOKENS))
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=STEPS,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        **options,
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:2], callbacks=callbacks)
    trainer.train()
    return trainer


def test_trainer(tmp_path: Path) -> None:
    """With accumulated batches and an evaluation after each second step; a watch of its own says what is right."""
    from transformers import TrainerCallback

    path, model = tmp_path / "a.jsonl", llama()
    right: dict[int, list[float]] = {}
    forwards: list[tuple[bool, bool]] = []

    class Noted(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            right[state.global_step] = tops(watch)

    callback = trainer_callback(path, every=2, heads=True)
    handle = model.register_forward_hook(
        lambda *_: forwards.append((model.training, callback.training_log.watch.paused))
    )
    options = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "learning_rate": 0.01}
    with rootdk.watch(model) as watch:
        run_trainer(tmp_path, [Noted(), callback], model, **options)
    handle.remove()
    assert [paused for training, paused in forwards if training] == [False, False, True, True] * (STEPS // 2)
    assert [paused for training, paused in forwards if not training] == [True] * 3
    written = lines(path)
    assert [line["step"] for line in written] == [1, 3, 5]
    assert [[line[key] for key in KEYS] for line in written] == [right[step] for step in (1, 3, 5)]
    assert len({line["attn/layer_01/head_01/entropy_ratio"] for line in written}) == 3
    assert list(model._forward_hooks) == []
    assert callback.training_log.watch is None


def test_trainer_clips_after_each_step(tmp_path: Path) -> None:
    """At a learning rate of 0 the weights change by the clip alone; what is saved in a step is clipped already."""
    path, model = tmp_path / "a.jsonl", llama(loud=30.0)
    weight = model.model.layers[1].self_attn.q_proj.weight
    start = weight.detach().clone()
    run_trainer(tmp_path, [trainer_callback(path, clip_tau=TAU)], model, learning_rate=0.0)
    written = lines(path)
    factors = [line["attn/layer_01/qk_clip"] for line in written]
    assert written[0]["attn/layer_01/max_score"] > 4 * TAU
    assert factors[0] == pytest.approx(TAU / written[0]["attn/layer_01/max_score"], rel=1e-5)
    assert min(factors[1:]) > 0.25  # other batches may lie a little above
    assert float(weight.detach().norm() / start.norm()) < 0.5


# --- Lightning


def run_lightning(folder: Path, callback: Any, model: nn.Module, seen: Any = None, **options: Any) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.rate = options.pop("rate", 0.05)
            self.validated, self.right = 0, {}

        def training_step(self, batch: Any) -> Any:
            return self.model(batch).square().mean()

        def on_train_batch_end(self, *_: Any) -> None:
            if seen is not None:
                self.right.setdefault(self.trainer.global_step, tops(seen))  # of the batch that ended in a step

        def validation_step(self, batch: Any) -> None:
            self.validated += 1
            self.model(100 * batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.rate)

    module = Module()
    accumulated = options.get("accumulate_grad_batches", 1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )
    data = torch.utils.data.DataLoader(batches(STEPS * accumulated), batch_size=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of workers and devices
        trainer.fit(module, data, torch.utils.data.DataLoader(batches(1), batch_size=None))
    return module


@pytest.mark.parametrize("part", ["", "model"])
def test_lightning(tmp_path: Path, part: str) -> None:
    """With accumulated batches and a validation, whose logits are far larger, after every second batch."""
    path, model = tmp_path / "a.jsonl", encoder()
    callback = lightning_callback(path, every=2, part=part)
    with rootdk.watch(model) as watch:
        module = run_lightning(tmp_path, callback, model, watch, accumulate_grad_batches=2, val_check_interval=2)
    assert module.validated >= STEPS
    written = lines(path)
    assert [line["step"] for line in written] == [1, 3, 5]
    assert [[line[key] for key in KEYS] for line in written] == [module.right[step] for step in (1, 3, 5)]
    assert list(model._forward_hooks) == []
    assert callback.training_log.watch is None


def test_lightning_clips_after_each_step(tmp_path: Path) -> None:
    path, model = tmp_path / "a.jsonl", encoder(loud=30.0)
    run_lightning(tmp_path, lightning_callback(path, clip_tau=TAU), model, rate=0.0)
    written = lines(path)
    assert written[0]["attn/layer_01/max_score"] > 4 * TAU
    assert written[0]["attn/layer_01/qk_clip"] == pytest.approx(TAU / written[0]["attn/layer_01/max_score"], rel=1e-5)
    assert min(line["attn/layer_01/qk_clip"] for line in written[1:]) > 0.25
    assert max(largest(model, batches(STEPS))) <= TAU * (1 + 1e-5)


def test_an_exception_in_lightning_leaves_nothing_behind(tmp_path: Path) -> None:
    model = encoder()
    callback = lightning_callback(tmp_path / "a.jsonl")
    model.layers[1].register_forward_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        run_lightning(tmp_path, callback, model, num_sanity_val_steps=0)
    assert callback.training_log.watch is None


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    callback = lightning_callback(tmp_path / "a.jsonl", part="modle")
    with pytest.raises(ArgumentError, match=r"^part: must be the path of a submodule of Module, got 'modle'$"):
        run_lightning(tmp_path, callback, encoder())


@pytest.mark.parametrize("make", [trainer_callback, lightning_callback])
def test_a_callback_can_be_pickled(tmp_path: Path, make: Any) -> None:
    """Lightning does so where it starts processes."""
    callback = make(tmp_path / "a.jsonl", every=3, clip_tau=50.0)
    copy = pickle.loads(pickle.dumps(callback))
    assert (copy.training_log.every, copy.training_log.clip_tau) == (3, 50.0)
    assert copy.training_log.sinks[0].path == tmp_path / "a.jsonl"


# --- several processes


def in_one_process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    model = encoder(loud=30.0)
    data = batches(4)[2 * rank : 2 * rank + 2]
    with TrainingLog(f"{folder}/rank{rank}.jsonl", clip_tau=TAU).start(model) as log:
        train(model, data, log.after_step, rate=0.0)
        assert log.watch is not None
    with TrainingLog(f"{folder}/plain{rank}.jsonl", parallel=None).start(model) as log:
        train(model, data, log.after_step, rate=0.0)
        assert rank == 0 or log.watch is None
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    _clip_sharded(mesh)
    torch.save({"weights": model.state_dict(), "top": largest(model, data)}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def _clip_sharded(mesh: Any) -> None:
    """Rows of W_q and columns of W_k are spread over the ranks; every rank clips its own, and all of it comes out."""
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    whole = nn.ModuleDict({"q_proj": nn.Linear(16, 32), "k_proj": nn.Linear(16, 16)})
    sharded = copy.deepcopy(whole)
    for part, axis in (("q_proj", 0), ("k_proj", 1)):
        spread = distribute_tensor(whole[part].weight.detach(), mesh, [Shard(axis)])
        sharded[part].weight = nn.Parameter(spread)
    largest_scores = {"attn": (np.array([200.0, 50.0, 400.0, 150.0]), 8)}
    for model in (whole, sharded):
        clip_to_(nn.ModuleDict({"attn": model}), largest_scores, tau=100.0)
    for part in ("q_proj", "k_proj"):
        assert torch.equal(sharded[part].weight.full_tensor(), whole[part].weight)


def test_a_log_that_was_not_started_is_an_error(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "a.jsonl")
    for use in (log.after_step, log.after_forward, log.__enter__):
        with pytest.raises(ArgumentError, match=r"^TrainingLog: must be started before \w+, got none: call start"):
            use()
    with log.start(encoder()):
        pass
    with pytest.raises(ArgumentError, match="must be started before after_step"):
        log.after_step()


def test_rank_0_writes_and_replicas_stay_equal(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(in_one_process, (str(tmp_path),), nprocs=2, start_method="spawn")
    assert sorted(path.name for path in tmp_path.glob("*.jsonl")) == ["plain0.jsonl", "rank0.jsonl"]
    assert [line["step"] for line in lines(tmp_path / "rank0.jsonl")] == [1, 2]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][name]), name
    assert max(first["top"][1], second["top"][1]) == pytest.approx(TAU, rel=1e-5)
