"""Settings that the script's own command line has are offered as its options."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.diagnose.flags import offered
from slipstream.records import Finding, Flag, Session, Site, Statement, Trainer
from slipstream.testing.made_sessions import FILE, made_loader, made_session

LINE = Site(FILE, 31, "loader = DataLoader(photos, batch_size=args.batch, num_workers=args.workers)", "main")


def change_of(finding_settings: dict[str, str], *flags: Flag, session: Session | None = None, site: Site = LINE) -> str:
    session = msgspec.structs.replace(session or made_session(), flags=list(flags))
    finding = Finding("cause", "title", "evidence", 1.5, "the code", site, settings=finding_settings)
    return offered(session, finding).change


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("workers", "--workers"),
        ("num_workers", "--num-workers"),
        ("dataloader_num_workers", "--dataloader_num_workers"),
        ("nThreads_workers", "--nThreads_workers"),
        ("j", "-j"),
    ],
)
def test_the_number_of_workers(name: str, option: str) -> None:
    finding = {"num_workers": "2"}
    assert change_of(finding, Flag(name, option, "0")) == f"{option} 2 on the script's command line"
    assert change_of(finding, Flag(name, option, "4")) == "the code", "another value reaches the loader"
    fixed = msgspec.structs.replace(LINE, text="DataLoader(photos, num_workers=0)")
    assert change_of(finding, Flag(name, option, "0"), site=fixed) == "the code"


def test_two_options_that_may_be_meant() -> None:
    flags = [Flag("train_workers", "--train_workers", "0"), Flag("eval_workers", "--eval_workers", "0")]
    assert change_of({"num_workers": "2"}, *flags) == "the code"
    assert change_of({"num_workers": "2"}, *[flags[0]] * 2).startswith("--train_workers 2 "), "the parser ran twice"


def test_a_setting_without_an_option_stays_in_the_source() -> None:
    settings = {"num_workers": "2", "persistent_workers": "True"}
    workers = Flag("workers", "--workers", "0")
    assert change_of(settings, workers) == (
        "--workers 2 on the script's command line, and persistent_workers=True in the source"
    )
    both = Flag("dataloader_persistent_workers", "--dataloader_persistent_workers", "False", is_switch=True)
    assert change_of(settings, workers, both).startswith("--workers 2 --dataloader_persistent_workers on the script's")
    assert change_of(settings, both) == "the code"


@pytest.mark.parametrize(
    ("setting", "flag", "text"),
    [
        ("bf16", Flag("bf16", "--bf16", "False", is_switch=True), "--bf16"),
        ("bf16", Flag("use_bf16", "--use-bf16", "False"), "--use-bf16 True"),
        ("bf16", Flag("bf16", "--bf16", "True", is_switch=True), ""),
        ("bf16", Flag("mixed_precision", "--mixed_precision", "no", choices=["no", "fp16", "bf16"]), "… bf16"),
        ("bf16", Flag("dtype", "--dtype", "float32", choices=["float32", "bfloat16"]), "--dtype bfloat16"),
        ("bf16", Flag("fp16", "--fp16", "False", is_switch=True), ""),
        ("fp16", Flag("amp", "--amp", "False", is_switch=True), "--amp"),
        ("compile", Flag("torch_compile", "--torch_compile", "False", is_switch=True), "--torch_compile"),
        ("compile", Flag("compile", "--compile", "False", is_switch=True), "--compile"),
        ("fused", Flag("optim", "--optim", "adamw_torch", choices=["sgd", "adamw_torch_fused"]), "… adamw_torch_fused"),
        ("fused", Flag("optim", "--optim", "sgd", choices=["sgd", "adamw_torch_fused"]), ""),
        ("pin_memory", Flag("pin_mem", "--pin-mem", "False", is_switch=True), "--pin-mem"),
    ],
)
def test_switches_and_choices(setting: str, flag: Flag, text: str) -> None:
    wanted = text.replace("…", flag.option)
    assert change_of({setting: "True"}, flag) == (f"{wanted} on the script's command line" if text else "the code")


def test_an_interval_is_offered_where_the_condition_or_a_trainer_reads_it() -> None:
    log, setting = Flag("log_interval", "--log-interval", "10"), {"logging_steps": "100"}
    session = made_session()
    assert change_of(setting, log, session=session) == "the code"
    guarded = Statement(FILE, 31, guard="step % args.log_interval == 0")
    session = msgspec.structs.replace(session, statements=[guarded])
    assert change_of(setting, log, session=session) == "--log-interval 100 on the script's command line"
    rarer = msgspec.structs.replace(log, value="500")
    assert change_of(setting, rarer, session=session) == "the code"
    session = msgspec.structs.replace(session, statements=[], trainer=Trainer("transformers", "Trainer"))
    own = Flag("logging_steps", "--logging_steps", "5")
    assert change_of(setting, own, session=session) == "--logging_steps 100 on the script's command line"


def test_the_finding_of_a_loader_without_workers() -> None:
    loader = made_loader(0, site=LINE)
    session = made_session(input_ms=60.0, loader=loader)
    flags = [Flag("workers", "--workers", "0"), Flag("batch", "--batch", "32")]
    (plain,) = [one for one in diagnose(session).findings if one.cause == "no_workers"]
    assert "on the script's command line" not in plain.change
    (found,) = [
        one for one in diagnose(msgspec.structs.replace(session, flags=flags)).findings if one.cause == "no_workers"
    ]
    assert found.change.startswith(f"--workers {plain.settings['num_workers']} on the script's command line")
