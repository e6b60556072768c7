"""Compares a script under `slipstream run` with the same script under plain python: output, tracebacks, exit codes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from slipstream.launch.hide_frames import hide_our_frames

SHOW = """
import sys
print(sorted(globals()), __name__, __file__, __package__, __cached__, __doc__, type(__loader__).__name__)
print(__spec__ and (__spec__.name, __spec__.origin), __builtins__.__name__)
print(sys.modules["__main__"].__dict__ is globals())
print(sys.argv, sys.path, list(globals())[:9])
"""

SCRIPTS = {
    "docstring": '"""Mine."""\nprint(__doc__)\n',
    "raises": """
        def inner():
            raise ValueError("no")
        try:
            1 / 0
        except ZeroDivisionError:
            inner()
    """,
    "raises_from": """
        try:
            {}["a"]
        except KeyError as error:
            raise RuntimeError("second") from error
    """,
    "exit_text": "import sys; sys.exit('goodbye')",
    "exit_number": "import sys; sys.exit(3)",
    "exit_none": "import sys; sys.exit()",
    "exit_large": "import sys; sys.exit(259)",
    "interrupted": "raise KeyboardInterrupt",
    "syntax": "print('a')\nif True\n    pass\n",
    "hook": """
        import sys
        def hook(kind, error, trace):
            print("hook", kind.__name__, error, trace.tb_frame.f_code.co_name, trace.tb_next)
        sys.excepthook = hook
        raise ValueError("mine")
    """,
    "broken_hook": """
        import sys
        def hook(*args):
            raise TypeError("the hook fails")
        sys.excepthook = hook
        raise ValueError("mine")
    """,
    "ending": """
        import atexit, threading, time
        def later():
            time.sleep(0.1); print("thread")
        threading.Thread(target=later).start()
        atexit.register(print, "atexit 1"); atexit.register(print, "atexit 2")
        class Last:
            def __del__(self): print("deleted")
        last = Last()
        print("main")
        raise SystemExit(4)
    """,
    "exec": "exec(compile('x = 1\\nraise ValueError(x)', '<string>', 'exec'))",
    "stack": "import traceback\ndef f(): print(len(traceback.extract_tb(__import__('sys').exc_info()[2])))\n"
    "try:\n    1/0\nexcept ZeroDivisionError: f()\n",
    "printed": """
        import logging, traceback
        def f():
            traceback.print_stack()
            print(traceback.extract_stack()[0].name, len(traceback.extract_stack()))
            1 / 0
        try:
            f()
        except ZeroDivisionError:
            traceback.print_exc()
            logging.exception("logged", stack_info=True)
    """,
    "depth": """
        import inspect, sys
        def f():
            return [(frame.function, frame.lineno) for frame in inspect.stack()]
        print(f(), len(inspect.getouterframes(inspect.currentframe())), sys.getrecursionlimit())
    """,
    "modules": """
        import sys
        print([name for name in sys.modules if name.partition(".")[0] in ("click", "msgspec", "psutil", "numpy")])
        import click  # the script's own copy
        print(click.style("a", fg="red"), click.__name__ in sys.modules)
    """,
    "group": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
}


def python(*command: str, cwd: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, encoding="utf-8", errors="replace", timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def assert_same(cwd: Path, *script: str) -> tuple[int, str, str]:
    bare = python(*script, cwd=cwd)
    code, out, err = python("-m", "slipstream", "run", *script, cwd=cwd)
    lines = err.splitlines(keepends=True)
    assert lines and lines[-1].startswith("slipstream: ")
    assert (code, out, "".join(lines[:-1])) == bare
    return bare


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_as_under_python(tmp_path: Path, name: str) -> None:
    if name == "group" and sys.version_info < (3, 11):
        pytest.skip("exception groups")
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPTS[name]))
    assert_same(tmp_path, "train.py")


@pytest.mark.parametrize("name", ["click", "msgspec", "shlex"])  # `run` imports all three
def test_a_module_beside_the_script_is_found_first(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("print('mine')\n")
    steps = STEPS if name == "msgspec" else ""  # modules of slipstream that are imported with torch need this one
    (tmp_path / "train.py").write_text(f"import sys, {name}\nprint(sys.modules[{name!r}].__file__)\n" + steps)
    assert_same(tmp_path, *(["-m", "train"] if name == "click" else ["train.py"]))


STEPS = """
import torch
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
print(weight)
"""
WARNINGS = """
import torch
class Data(torch.utils.data.IterableDataset):
    def __len__(self):
        return 1
    def __iter__(self):
        return iter([torch.ones(2)] * 4)
    def __repr__(self):
        return "Data"
weight = torch.ones(2, requires_grad=True)
def backward():
    torch.autograd.backward(weight.square().sum(), grad_variables=torch.tensor(1.0))
    weight.square().sum().backward(create_graph=True)
backward()
optimizer = torch.optim.SGD([weight], lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()
loader = torch.utils.data.DataLoader(Data())
len(loader)
for batch in loader:
    backward()
    optimizer.step()
    scheduler.step(3)
"""


def test_warnings_name_the_same_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WARNINGS)
    _, _, err = assert_same(tmp_path, "train.py")
    assert "`grad_variables` is deprecated" in err


@pytest.mark.parametrize(
    "script", [["train.py", "-a", "--help", "b c"], ["./train.py"], ["sub/../train.py"], ["link.py"], ["-m", "train"]]
)
def test_main_module_equals_that_of_python(tmp_path: Path, script: list[str]) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sub").mkdir()
    (tmp_path / "elsewhere" / "real.py").write_text(SHOW)
    (tmp_path / "link.py").symlink_to("elsewhere/real.py")
    (tmp_path / "train.py").write_text(SHOW)
    code, out, _ = assert_same(tmp_path, *script)
    assert code == 0 and "__main__" in out


def test_packages_directories_and_archives(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys; print('init', sys.argv)")
    (package / "__main__.py").write_text(SHOW + "raise ValueError('in a package')")
    (package / "train.py").write_text(SHOW + "raise ValueError('in a module')")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", SHOW + "raise ValueError('in an archive')")
    for script in (["-m", "package", "x"], ["-m", "package.train", "-v"], ["package", "y"], ["app.pyz"]):
        assert assert_same(tmp_path, *script)[0] == 1


def test_source_encodings(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes(
        "# -*- coding: latin-1 -*-\nprint(ascii('é'))\nraise ValueError('é')\n".encode("latin-1")
    )
    (tmp_path / "marked.py").write_bytes(b"\xef\xbb\xbfprint('bom')\n")
    assert_same(tmp_path, "latin.py")
    assert_same(tmp_path, "marked.py")
    assert not (tmp_path / "__pycache__").exists()


def test_interpreter_flags_are_passed_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nprint(__debug__, sys.flags.optimize, sys.stdout.write_through)\nassert False"
    )
    bare = python("-O", "-u", "train.py", cwd=tmp_path)
    assert python("-O", "-u", "-m", "slipstream", "run", "train.py", cwd=tmp_path)[:2] == bare[:2]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_child_processes_can_unpickle_classes_of_main(tmp_path: Path, method: str) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent(f"""
        import multiprocessing, sys
        print("imported as", __name__)
        class Item:
            value = 0
        def work(item, queue):
            item.value += 1
            queue.put((item, __name__, sys.argv, type(item).__module__))
        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            queue = context.Queue()
            process = context.Process(target=work, args=(Item(), queue))
            process.start()
            item, *rest = queue.get()
            process.join()
            print(item.value, type(item) is Item, rest, process.exitcode)
        """)
    )
    assert assert_same(tmp_path, "train.py", "--lr", "1")[0] == 0


def test_missing_module_is_a_user_error(tmp_path: Path) -> None:
    code, _, err = python("-m", "slipstream", "run", "-m", "nowhere.train", cwd=tmp_path)
    assert code == 2
    assert "nowhere" in err and "Traceback" not in err


def test_slipstream_disable_runs_plain_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_DISABLE", "1")
    (tmp_path / "train.py").write_text(
        "import sys; print([name for name in sys.modules if 'slipstream.' in name]); sys.exit(5)"
    )
    for command in ("run", "check"):
        assert python("-m", "slipstream", command, "train.py", cwd=tmp_path) == (5, "[]\n", "")


def test_our_frames_are_hidden_in_every_chained_exception() -> None:
    def fail() -> None:
        exec(compile("1 / 0", hide_our_frames.__code__.co_filename, "exec"))

    try:
        try:
            fail()
        except ZeroDivisionError as error:
            raise ValueError from error
    except ValueError as error:
        hide_our_frames(error)
        cause = error.__cause__
        assert cause is not None and cause.__traceback__ is not None
        names = []
        link = cause.__traceback__
        while link is not None:
            names.append(link.tb_frame.f_code.co_name)
            link = link.tb_next
    assert names == ["test_our_frames_are_hidden_in_every_chained_exception", "fail"]
