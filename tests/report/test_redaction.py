"""What a user attaches to an issue contains no path, argument, name or source line of theirs, in any format."""

from __future__ import annotations

import getpass
import gzip
import socket
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from slipstream.cli.group import slipstream
from slipstream.records import Choice, Ending, Flag, Recipe, Session, Site
from slipstream.report.redaction import REMAINING, redact_session
from slipstream.store.older_sessions import decode_session
from slipstream.store.sessions import load_session
from slipstream.testing.made_sessions import made_environment
from slipstream.testing.selftest import SelftestOutcome, SelftestPart, write_report

SAVED = Path(__file__).parents[1] / "golden" / "saved"
SECRETS = ("golden-project", "golden-home", "hunter2", "kea", "vault", "s3cret", "model(inputs)", "ghost", "boss@")


def session(name: str) -> Session:
    saved = decode_session(gzip.decompress((SAVED / f"{name}.msgpack.gz").read_bytes()))
    here = "/tmp/golden-project"
    return msgspec.structs.replace(
        saved,
        script=["jobs/train.py", "--password=hunter2", "/vault/kea/a.csv", "--name", "s3cret"],
        options=["--json", "/vault/kea/a.json", "--budget", "30s"],
        flags=[Flag("password", "--password", "hunter2", choices=["hunter2"])],
        ending=Ending("raised", 1, 1.0, "ValueError: /vault/kea/a.csv of ghost has no column s3cret"),
        sites=[*saved.sites, Site("/vault/kea/lib.py", 3, "password = 'hunter2'", "load")],
        notes=[
            *saved.notes,
            f"The script wrote {here}/kea/a.pt, ~/kea/a.txt and ../kea/x to boss@example.org, s3://kea/ghost.",
            f"hunter2 on {socket.gethostname()} of {getpass.getuser()}: password = 'hunter2' at {here}/train.py:3",
        ],
        written=[f"{here}/kea/model.pt"],
    )


@pytest.mark.parametrize("name", ["check", "tune", "memory", "fit"])
@pytest.mark.parametrize("form", ["--html", "--json"])
def test_no_secret_is_left(name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket, "gethostname", lambda: "kiwihost")
    monkeypatch.setattr(getpass, "getuser", lambda: "kiwiuser")
    (tmp_path / "own.msgpack").write_bytes(msgspec.msgpack.encode(session(name)))
    arguments = ["report", "own.msgpack", "--share", "shared.msgpack", form, "page.html", "--no-open"]
    done = CliRunner().invoke(slipstream, arguments if form == "--html" else arguments[:-1])
    assert done.exit_code == 0, done.output
    assert "Left out: " in done.output and REMAINING in done.output
    shared = load_session(tmp_path / "shared.msgpack")
    texts = {
        "file": (tmp_path / "shared.msgpack").read_bytes().decode("utf-8", "replace"),
        form: (tmp_path / "page.html").read_text(),
        "printed": done.output.replace("own.msgpack", ""),
    }
    for what, text in texts.items():
        found = [secret for secret in (*SECRETS, "kiwihost", "kiwiuser") if secret in text]
        assert not found, f"{what}: {found}, as in {text[max(0, text.find(found[0]) - 60) :][:120]!r}"
    assert shared.script == ["train.py", "(argument)"] and shared.steps == session(name).steps
    assert all(site.text == "" and site.function for site in shared.sites[:1])


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact_session(session("tune"))
    assert redact_session(once) == once
    assert once.tuning is not None and once.tuning.recipe == Recipe(
        (Choice("fused_optimizer", True), Choice("batched_fetch", True))
    )


def test_the_report_of_a_selftest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "kiwihost")
    environment = made_environment()
    environment = msgspec.structs.replace(
        environment, variables={"TORCH_HOME": "/vault/kea/hub", "OMP_NUM_THREADS": "2"}
    )
    outcome = SelftestOutcome("runs", False, f"OSError: {Path.cwd()}/kea/x.py on kiwihost: /vault/kea/a.csv is missing")
    text = write_report(environment, "cpu", [SelftestPart("compile", [outcome])])
    assert not [secret for secret in ("kea/", "/vault", "kiwihost", str(Path.cwd())) if secret in text]
    assert "OMP_NUM_THREADS" in text and "Left out: " in text and "OSError: " in text
