"""slipstream patch, which needs only a saved session."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from slipstream.cli.group import slipstream
from slipstream.diagnose import diagnose
from slipstream.recipe.source_edits import edits_of
from slipstream.records import Choice, Fitting, Recipe, Session, Site, Speed, Tuning
from slipstream.records.race import FARTHEST
from slipstream.store.sessions import save_session
from slipstream.testing.made_sessions import made_loader, made_model, made_optimizer, made_session
from slipstream.testing.zoo import HERE

ZOO = "no_workers"
RECIPE = Recipe(
    (Choice("workers", 2), Choice("fused_optimizer"), Choice("cpu_threads", 1), Choice("allocator", "keep"))
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script of the zoo, as it was when the session was made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # otherwise the technique `workers` asks the user to set it by hand
    (tmp_path / "train.py").write_bytes((HERE / f"{ZOO}.py").read_bytes())
    return tmp_path


def session_of(folder: Path, recipe: Recipe = RECIPE, is_tuned: bool = True) -> Session:
    path = folder / "train.py"

    def site(piece: str) -> Site:
        lines = path.read_text().split("\n")
        (number,) = [number for number, line in enumerate(lines, 1) if piece in line]
        return Site(str(path), number, lines[number - 1].strip(), "<module>")

    session = made_session(
        loader=made_loader(site=site("= DataLoader(")),
        model=made_model(site=site("model(x)"), name="model", class_name="Sequential"),
        optimizer=made_optimizer(site=site("torch.optim.SGD"), class_name="SGD"),
    )
    session = msgspec.structs.replace(session, cwd=str(folder), command="tune" if is_tuned else "check")
    if not is_tuned:
        return session
    tuning = Tuning(10.0, 100.0, recipe=recipe, edits=edits_of(session, recipe))
    return msgspec.structs.replace(session, tuning=tuning)


def patch(*args: str) -> Result:
    return CliRunner().invoke(slipstream, ["patch", *args])


def test_the_diff_on_stdout_and_the_rest_on_stderr(folder: Path) -> None:
    save_session(session_of(folder))
    before = (folder / "train.py").read_bytes()
    done = patch("train.py")
    assert done.exit_code == 0, done.output
    changed = [line for line in done.stdout.split("\n") if line[:1] in "+-" and line[1:2] != line[:1]]
    assert changed == [
        "+",
        "+torch.set_num_threads(1)",
        "-optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
        "-loader = DataLoader(Sounds(), batch_size=8, shuffle=True)  # <- planted",
        "+optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)",
        "+loader = DataLoader(Sounds(), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True)"
        "  # <- planted",
    ]
    assert "by hand, allocator: MALLOC_" in done.stderr and "before Python starts" in done.stderr
    assert "until then, this command applies allocator: slipstream run train.py" in done.stderr
    assert (folder / "train.py").read_bytes() == before
    applied = subprocess.run(["git", "apply", "-"], input=done.stdout_bytes, cwd=folder, capture_output=True)
    assert applied.returncode == 0, applied.stderr

    again = patch("train.py")
    assert (again.exit_code, again.stdout) == (0, "")
    assert "nothing to change: the source already has every edit that can be made" in again.stderr


NOTHING = Recipe()
THREADS = Recipe((Choice("thread_workers", 2),))


def tuned(folder: Path, recipe: Recipe, writable: Recipe = NOTHING, speed: Speed | None = None) -> None:
    session = session_of(folder, recipe)
    assert session.tuning is not None
    edits = edits_of(session, writable)
    figures = {"total": Speed(2.14, 2.0, 2.3, 9), "writable": writable, "writable_speed": speed}
    tuning = msgspec.structs.replace(session.tuning, **figures, writable_edits=edits)
    save_session(msgspec.structs.replace(session, script=["train.py", "--steps", "20"], tuning=tuning))


def test_the_best_writable_recipe_stands_in_for_the_kept_one(folder: Path) -> None:
    tuned(folder, THREADS, Recipe((Choice("workers", 2),)), Speed(1.6, 1 / FARTHEST, FARTHEST))
    done = patch("train.py")
    assert (
        done.exit_code == 0
        and "+loader = DataLoader(Sounds(), batch_size=8, shuffle=True, num_workers=2" in done.stdout
    )
    assert (
        "the recipe: thread_workers=2, 2.14x (2.00–2.30); no edit of the source does it (slipstream run does); "
        "written: workers=2, about 1.60x." in done.stderr
    )
    assert "by hand, thread_workers" not in done.stderr, "workers=2 replaces it"
    (folder / "slipstream.toml").write_text("version = 1\n[recipe]\nthread_workers = 2\n")
    assert patch("train.py").stdout == done.stdout, "the recipe file holds what was kept"
    (folder / "slipstream.toml").write_text("version = 1\n[recipe]\nthread_workers = 1\n")
    assert "num_workers" not in patch("train.py").stdout, "this recipe was not measured"


def test_the_rest_of_a_recipe_is_written_without_a_figure(folder: Path) -> None:
    tuned(folder, Recipe((*THREADS.choices, Choice("fused_optimizer"))))
    done = patch("train.py")
    assert "fused=True" in done.stdout and "num_workers" not in done.stdout
    assert "no edit of the source does thread_workers=2" in done.stderr
    assert "written: fused_optimizer, not measured alone (--prove measures it)." in done.stderr
    assert "by hand, thread_workers" in done.stderr


def test_nothing_that_can_be_written_names_why_and_the_command_to_try(folder: Path) -> None:
    tuned(folder, THREADS)
    done = patch("train.py")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to change: no edit of the source does thread_workers=2" in done.stderr
    assert "slipstream tune --patchable train.py --steps 20" in done.stderr


def test_import_writes_the_kept_recipe_with_our_loader(folder: Path) -> None:
    tuned(folder, THREADS, Recipe((Choice("workers", 2),)), Speed(1.6, 1.5, 1.7, 9))
    assert (
        "with slipstream.DataLoader in the source, thread_workers=2 can be written: add --import"
        in patch("train.py").stderr
    )
    done = patch("train.py", "--import", "--write")
    assert done.exit_code == 0 and "by hand" not in done.stderr, done.stderr
    text = (folder / "train.py").read_text()
    assert "import slipstream\nimport torch\n" in text
    assert "loader = slipstream.DataLoader(Sounds(), batch_size=8, shuffle=True, thread_workers=2)" in text
    ran = subprocess.run(
        [sys.executable, "train.py", "--steps", "20"], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0 and "step 20 loss" in ran.stdout, ran.stderr
    again = patch("train.py", "--import")
    assert again.stdout == "" and "the source already has every edit" in again.stderr


def test_arguments_of_the_script_are_ignored(folder: Path) -> None:
    save_session(session_of(folder))
    alone, with_arguments = patch("train.py"), patch("train.py", "-e", "3", "--steps=20")
    assert (with_arguments.exit_code, with_arguments.stdout) == (0, alone.stdout)
    assert "ignored: -e 3 --steps=20" in with_arguments.stderr


def test_the_patched_script_trains(folder: Path) -> None:
    save_session(session_of(folder))
    assert patch("train.py", "--write").exit_code == 0
    done = subprocess.run(
        [sys.executable, "train.py", "--steps", "20"], cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and "step 20 loss" in done.stdout, done.stderr


def test_write_refuses_to_change_uncommitted_files(folder: Path) -> None:
    save_session(session_of(folder))
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    done = patch("train.py", "--write")
    assert done.exit_code == 2 and "Commit them first, or add --force" in done.stderr
    assert "num_workers" not in (folder / "train.py").read_text()
    done = patch("train.py", "--write", "--force")
    assert done.exit_code == 0 and "wrote train.py" in done.stderr
    assert "num_workers=2" in (folder / "train.py").read_text()


def test_the_recipe_file_has_priority_over_the_session(folder: Path) -> None:
    save_session(session_of(folder))
    recipe = folder / "slipstream.toml"
    recipe.write_text('version = 1\n[script]\ncommand = ["train.py"]\n[recipe]\nworkers = 3\n')
    done = patch("train.py")
    assert "num_workers=3" in done.stdout and "fused" not in done.stdout
    recipe.write_text('version = 1\n[script]\ncommand = ["other.py"]\n[recipe]\nworkers = 3\n')
    assert "num_workers=2" in patch("train.py").stdout
    assert "num_workers=3" in patch("train.py", "--recipe", "slipstream.toml").stdout


def test_line_numbers_may_come_from_a_check(folder: Path) -> None:
    save_session(session_of(folder, is_tuned=False))
    done = patch("train.py")
    assert (done.exit_code, done.stdout) == (0, "") and "only a check was saved" in done.stderr
    (folder / "slipstream.toml").write_text("version = 1\n[recipe]\nworkers = 2\n")
    assert "num_workers=2" in patch("train.py").stdout


def test_a_session_without_models_does_not_hide_an_older_one(folder: Path) -> None:
    """For example a check that failed at its first line. The recipe of a fit is used like that of a tuning."""
    Path("slipstream.toml").write_text("version = 1\n[recipe]\nworkers = 2\n")
    save_session(session_of(folder, is_tuned=False))
    blind = msgspec.structs.replace(session_of(folder, is_tuned=False), models=[], loaders=[], optimizers=[])
    os.utime(save_session(blind), (4_000_000_000, 4_000_000_000))
    assert "+loader = DataLoader(Sounds(), batch_size=8, shuffle=True, num_workers=2" in patch("train.py").stdout
    Path("slipstream.toml").unlink()
    assert "only a check was saved" in patch("train.py").stderr
    fitting = Fitting(2**30, "--memory-limit", "cpu", 8, False, recipe=Recipe((Choice("cpu_threads", 1),)))
    os.utime(
        save_session(msgspec.structs.replace(session_of(folder, is_tuned=False), fitting=fitting)),
        (4_000_000_001, 4_000_000_001),
    )
    assert "+torch.set_num_threads(1)" in patch("train.py").stdout


def test_a_session_by_name_and_from_elsewhere(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = save_session(session_of(folder))
    other = tmp_path_factory.mktemp("laptop")
    (other / "train.py").write_bytes((folder / "train.py").read_bytes())
    done = patch("--session", str(path), str(other / "train.py"))
    assert "num_workers=2" in done.stdout and f"git apply in {other}" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["missing.py"], "There is no file"),
        (["train.py"], "No session of train.py is saved here. Make one: slipstream tune train.py"),
        (["train.py", "--session", "missing.msgpack"], "cannot be read"),
        (["train.py", "--recipe", "missing.toml", "--session", "saved"], "cannot be read"),
        (["other.py", "--session", "saved"], "is a session of train.py, not of other.py"),
        (["-m", "package.missing"], "The module package.missing is not in"),
        (["changed.py", "--session", "changed"], "has changed since"),
    ],
)
def test_user_errors_give_a_message(folder: Path, args: list[str], words: str) -> None:
    (folder / "other.py").write_text("")
    if "saved" in args or "changed" in args:
        path = save_session(session_of(folder))
        args = [
            "train.py" if arg == "changed.py" else str(path) if arg in ("saved", "changed") else arg for arg in args
        ]
    if words == "has changed since":
        text = (folder / "train.py").read_text()
        (folder / "train.py").write_text("\n" + text.replace("batch_size=8", "batch_size=16"))
    done = patch(*args)
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.output
    assert done.stdout == ""


def test_prove_refuses_with_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prove() -> tuple[object, str]:
        done = CliRunner().invoke(slipstream, ["patch", "train.py", "--prove", "--write"], standalone_mode=False)
        assert done.exception is None and callable(done.return_value)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            return done.return_value(), said.getvalue()

    save_session(session_of(folder))
    words = "--prove needs a session with training steps, and this session has none. Run slipstream tune first."
    assert prove() == (2, f"slipstream: {words}\n")
    elsewhere = msgspec.structs.replace(diagnose(session_of(folder)), cwd=str(folder.parent), script=["x/train.py"])
    monkeypatch.setattr("slipstream.cli.patch._is_of", lambda *_: True)
    save_session(elsewhere)
    assert f"Change to {folder.parent} first" in prove()[1]
    assert "num_workers" not in (folder / "train.py").read_text()
    assert patch("train.py", "--prove", "--budget", "soon").exit_code == 2


def test_without_torch(folder: Path) -> None:
    save_session(session_of(folder))
    program = "import sys; sys.modules['torch'] = None; from slipstream.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "patch", "train.py"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "num_workers=2" in done.stdout, done.stderr


def test_help_has_the_main_examples() -> None:
    shown = patch("--help").stdout
    assert "slipstream patch train.py | git apply" in shown and "--write" in shown
