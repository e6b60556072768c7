"""Accumulation by the framework with the effective batch unchanged. In Lightning, the Hugging Face Trainer and
Accelerate the weights equal those of the whole batch except for rounding. Unsupported cases are declined with a
reason."""

from __future__ import annotations

import copy
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from slipstream.records import Loader, Site
from slipstream.techniques import accumulation
from slipstream.techniques._core.observation import Observation
from slipstream.testing.made_sessions import made_session

os.environ["HF_HUB_OFFLINE"] = "1"
Weights = dict[str, torch.Tensor]
MIXING = "BatchNorm1d mixes the samples of a batch"


def make_data(num: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(num, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, 4, (num,), generator=generator))


def make_net(*extra: nn.Module) -> nn.Sequential:
    torch.manual_seed(2)
    return copy.deepcopy(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *extra, nn.Linear(8, 4))).double()


def weights_of(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(one: Weights, other: Weights) -> None:
    worst = max(float((value - other[name]).abs().max()) for name, value in one.items())
    assert worst < 1e-12, worst


@pytest.fixture(scope="module", autouse=True)
def frameworks() -> None:
    """Imports the frameworks before anything is watched, because transformers adds an import finder."""
    import accelerate
    import lightning
    import transformers

    assert accelerate and lightning and transformers.Trainer


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def cross_entropy(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net(x), y)


def weighted(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net(x), y, weight=torch.tensor([1.0, 2, 3, 4], dtype=torch.float64))


def summed(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net(x), y, reduction="sum")


def over_tokens(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(net(x).repeat(3, 1), y.repeat(3))


def contrastive(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = functional.normalize(net(x))
    return functional.cross_entropy(out @ out.flip(1).T, torch.arange(len(x)))


LOSSES = [
    (weighted, "class weights"),
    (summed, "sum|NllLoss"),
    (over_tokens, "averages over tokens"),
    (contrastive, "compares the samples|not the mean of the samples"),
]


# --- Lightning --------------------------------------------------------------------------------------------------------


def fit(
    num: int = 28,
    loss: Any = cross_entropy,
    extra: tuple[nn.Module, ...] = (),
    drop_last: bool = False,
    by_hand: bool = False,
    **options: Any,
) -> tuple[Weights, Any]:
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net(*extra)
            self.automatic_optimization = not by_hand

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            value: torch.Tensor = loss(self.net, *batch)
            self.log("loss", value)
            return value

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    torch.manual_seed(3)
    module = Module()
    torch.manual_seed(4)
    loader = DataLoader(make_data(num), batch_size=8, shuffle=True, drop_last=drop_last)
    given: dict[str, Any] = {"max_epochs": 2, "gradient_clip_val": 0.2, **options}
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    trainer.fit(module, loader)
    assert trainer.accumulate_grad_batches == given.get("accumulate_grad_batches", 1)
    assert len(loader) == len(DataLoader(make_data(num), batch_size=8, drop_last=drop_last)), "the loader is restored"
    return weights_of(module), (trainer.global_step, torch.rand(1).item())


@pytest.mark.parametrize(
    ("case", "num_pieces"),
    [
        ({"num": 24}, 4),
        ({"num": 27}, 4),  # a last batch of 3, in pieces of 1
        ({"num": 30, "accumulate_grad_batches": 2}, 4),  # a last batch of 6: 1, 2, 1, 2
        ({"num": 31, "drop_last": True}, 2),
    ],
)
def test_lightning_has_the_weights_of_the_whole_batch(case: dict[str, Any], num_pieces: int, applied: Any) -> None:
    bare, left = fit(**case)
    with applied(("accumulation", num_pieces)) as context:
        changed, left_then = fit(**case)
    assert_same(bare, changed)
    assert left == left_then, "the number of updates and the script's random numbers are unchanged"
    before = case.get("accumulate_grad_batches", 1)
    after = f"accumulate_grad_batches {before} -> {before * num_pieces}"
    assert (
        context.changes == [f"accumulation: batches of 8 in pieces of {8 // num_pieces}, {after}"]
        and not context.declined
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        *(({"loss": loss}, reason) for loss, reason in LOSSES),
        ({"extra": (nn.BatchNorm1d(8),)}, MIXING),
        ({"limit_train_batches": 2}, "limit_train_batches=2 would count pieces"),
    ],
)
def test_lightning_declines_with_a_reason(case: dict[str, Any], reason: str, applied: Any) -> None:
    bare, _ = fit(**case)
    with applied(("accumulation", 2)) as context:
        changed, _ = fit(**case)
    assert all(torch.equal(value, changed[name]) for name, value in bare.items())
    (said,) = context.declined
    assert any(one in said for one in reason.split("|")) and not context.changes


def test_a_batch_that_cannot_be_split_equally_is_declined(applied: Any) -> None:
    with applied(("accumulation", 16)) as context:
        fit()
    assert context.declined == ["accumulation: a batch of 8 cannot be split into 16 equal pieces"]


# --- the Hugging Face Trainer -----------------------------------------------------------------------------------------


class Rows(Dataset[Any]):
    """Sentences of three to nine tokens, padded with ignored labels; or rows of numbers with one label."""

    def __init__(self, num: int, of_tokens: bool) -> None:
        generator = torch.Generator().manual_seed(5)
        self._tokens = torch.randint(0, 20, (num, 9), generator=generator)
        self._lengths = torch.randint(3, 10, (num,), generator=generator).tolist()
        self._rows = make_data(num)
        self._of_tokens = of_tokens

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not self._of_tokens:
            return dict(zip(("x", "labels"), self._rows[index], strict=True))
        is_padding = torch.arange(9) >= self._lengths[index]
        labels = self._tokens[index].masked_fill(is_padding, -100)
        return {"input_ids": self._tokens[index], "attention_mask": (~is_padding).long(), "labels": labels}


def make_gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(6)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=20, n_positions=9, n_embd=8, n_layer=1, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
        )
    ).double()


class Plain(nn.Module):
    """A user's model that returns its own mean loss."""

    def __init__(self, loss: Any = cross_entropy, *extra: nn.Module) -> None:
        super().__init__()
        self.net, self._loss = make_net(*extra), loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self._loss(self.net, x, labels), "logits": self.net(x)}


class Careless(Plain):
    """Accepts any argument and ignores the number of labels in an update."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **told: Any) -> dict[str, torch.Tensor]:
        return super().forward(x, labels)


def train(
    folder: Path, make: Callable[[], nn.Module] = Plain, num: int = 28, **options: Any
) -> tuple[Weights, tuple[int, float]]:
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(7)
    model = make()
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=0.05,
        max_grad_norm=0.2,
        lr_scheduler_type="linear",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **options,
    )
    rows = Rows(num, of_tokens=hasattr(model, "config"))
    trainer = Trainer(model=model, args=arguments, train_dataset=rows)
    result = trainer.train()
    assert arguments.gradient_accumulation_steps == options.get("gradient_accumulation_steps", 1)
    assert not {"train", "training_step", "get_batch_samples", "get_train_dataloader"} & set(vars(trainer))
    return weights_of(model), (result.global_step, result.training_loss)


@pytest.mark.parametrize(
    ("make", "case"),
    [
        (Plain, {"num": 27, "gradient_accumulation_steps": 2}),
        (make_gpt, {"num": 30}),
    ],
)
def test_the_trainer_has_the_weights_of_the_whole_batch(
    make: Any, case: dict[str, Any], tmp_path: Path, applied: Any
) -> None:
    bare, told = train(tmp_path, make, **case)
    with applied(("accumulation", 4)) as context:
        changed, told_then = train(tmp_path, make, **case)
    assert_same(bare, changed)
    assert told == pytest.approx(told_then, rel=1e-5), "the number of updates and the reported loss are unchanged"
    before = case.get("gradient_accumulation_steps", 1)
    after = f"gradient_accumulation_steps {before} -> {4 * before}"
    assert context.changes == [f"accumulation: batches of 8 in pieces of 2, {after}"] and not context.declined


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Careless, "receives the number of labels per update but does not divide by it"),
        (lambda: Plain(cross_entropy, nn.BatchNorm1d(8)), MIXING),
    ],
)
def test_the_trainer_declines_with_a_reason(make: Any, reason: str, tmp_path: Path, applied: Any) -> None:
    bare, _ = train(tmp_path, make)
    with applied(("accumulation", 2)) as context:
        changed, _ = train(tmp_path, make)
    assert all(torch.equal(value, changed[name]) for name, value in bare.items())
    (said,) = context.declined
    assert any(one in said for one in reason.split("|")) and not context.changes


# --- Accelerate -------------------------------------------------------------------------------------------------------


def loop(
    num: int = 28,
    loss: Any = cross_entropy,
    extra: tuple[nn.Module, ...] = (),
    zero_first: bool = False,
    raw_schedule: bool = False,
    clip: str = "accelerator",
    plainly: bool = False,
    num_accumulated: int = 1,
) -> Weights:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_accumulated)
    model = make_net(*extra)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(8)
    loader: Any = DataLoader(make_data(num), batch_size=8, shuffle=True)
    scheduler: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=2 * len(loader))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if not raw_schedule:
        scheduler = accelerator.prepare(scheduler)
    for _ in range(2):
        model.train()
        for x, y in loader:
            with accelerator.accumulate(model):
                if zero_first:
                    optimizer.zero_grad()
                value = loss(model, x, y)
                value.backward() if plainly else accelerator.backward(value)
                if clip == "accelerator":
                    accelerator.clip_grad_norm_(model.parameters(), 0.2)
                else:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                optimizer.step()
                scheduler.step()
                if not zero_first:
                    optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            assert sum(len(x) for x, _ in loader) == num
            assert max(len(x) for x, _ in loader) == 8, "evaluation sees whole batches"
    assert accelerator.gradient_accumulation_steps == num_accumulated
    return weights_of(accelerator.unwrap_model(model))


@pytest.mark.parametrize(
    "case",
    [
        {"num": 24},
        {"num": 29},  # a last batch of 5: 1, 1, 1, 2
        {"num": 26, "zero_first": True, "raw_schedule": True, "clip": "torch"},
        {"loss": lambda net, x, y: 0.5 * cross_entropy(net, x, y) + net(x).square().mean()},
    ],
)
def test_accelerate_has_the_weights_of_the_whole_batch(case: dict[str, Any], applied: Any) -> None:
    bare = loop(**case)
    with applied(("accumulation", 4)) as context:
        changed = loop(**case)
    assert_same(bare, changed)
    assert "accumulation: batches of 8 in 4 pieces, gradient_accumulation_steps 1 -> 4" in context.changes
    assert not context.declined


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        *(({"loss": loss}, reason) for loss, reason in LOSSES),
        ({"extra": (nn.BatchNorm1d(8),)}, MIXING),
        ({"plainly": True}, "does not call accelerator.backward()"),
        ({"num_accumulated": 2}, "the script accumulates gradients already"),
        ({"loss": contrastive, "extra": (nn.Dropout(0.3),)}, "compares the samples"),
    ],
)
def test_accelerate_declines_with_a_reason(case: dict[str, Any], reason: str, applied: Any) -> None:
    """Unsupported loops are detected at the first piece at the latest. No bit differs afterwards, dropout included."""
    bare = loop(**case)
    with applied(("accumulation", 2)) as context:
        changed = loop(**case)
    assert all(torch.equal(value, changed[name]) for name, value in bare.items())
    (said,) = context.declined
    assert any(one in said for one in reason.split("|")), said


def test_a_loop_without_accumulate_is_declined(applied: Any) -> None:
    from accelerate import Accelerator

    with applied(("accumulation", 2)) as context:
        accelerator = Accelerator(cpu=True)
        net = make_net()
        model, optimizer, loader = accelerator.prepare(
            net, torch.optim.SGD(net.parameters(), 0.1), DataLoader(make_data(8), batch_size=4)
        )
        sizes = []
        for x, y in loader:
            sizes.append(len(x))
            accelerator.backward(cross_entropy(model, x, y))
            optimizer.step()
    assert sizes == [4, 4] and "try micro_batches instead" in context.declined[0]


def test_a_loop_without_a_framework_is_declined(applied: Any) -> None:
    with applied(("accumulation", 2)) as context:
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x, y in DataLoader(make_data(8), batch_size=4):
            cross_entropy(net, x, y).backward()
            optimizer.step()
    assert len(context.declined) == 1 and "try micro_batches instead" in context.declined[0]


# --- what was observed ------------------------------------------------------------------------------------------------


def seen(framework: str, batch_size: int = 12) -> Observation:
    import msgspec

    session = made_session()
    text = "args = TrainingArguments(per_device_train_batch_size=12)"
    loader = Loader(
        0, Site("/x/train.py", 3, text), "DataLoader", "Rows", 0, batch_size, None, False, False, False, 4, 48, "",
        framework=framework,
    )  # fmt: skip
    return Observation(msgspec.structs.replace(session, loaders=[loader]))


def test_applies_only_with_a_framework() -> None:
    assert accumulation.settings(seen("accelerate")) == [2, 4]
    assert accumulation.applies(seen("transformers")).is_yes
    assert "micro_batches" in accumulation.applies(seen("")).reason
    assert accumulation.applies(seen("lightning", 7)).reason == "a batch of 7 cannot be split into equal pieces"


def test_the_edit_changes_both_arguments_or_is_by_hand() -> None:
    edits = accumulation.edit(seen("transformers"), 4)
    assert [(one.argument, one.text) for one in edits] == [
        ("per_device_train_batch_size", "3"),
        ("gradient_accumulation_steps", "4"),
    ]
    (edit,) = accumulation.edit(seen("lightning"), 4)
    assert edit.kind == "by_hand" and "accumulate_grad_batches=4" in edit.text
