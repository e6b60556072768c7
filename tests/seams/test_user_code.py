"""Finds the user's line on a stack of known frames."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import types
from typing import Any

import torch

from slipstream.records import Site
from slipstream.seams.user_code import current_sites, is_user_code, user_frame


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = current_sites

    def loss(self) -> Any:
        return self.encoder()


def _validate(model: Model) -> Any:
    return model.loss()  # the loop that validates


def _texts(sites: tuple[Site | None, Site | None]) -> list[str]:
    return [site.text if site is not None else "" for site in sites]


def test_method_of_the_model_is_not_the_caller_of_a_validation() -> None:
    sites = _validate(Model())
    assert _texts(sites) == ["return model.loss()  # the loop that validates", "sites = _validate(Model())"]


def _score(model: Model) -> Any:
    return next(model.loss() for _ in range(1))  # in one line


def test_a_comprehension_is_part_of_the_function_around_it() -> None:
    sites = _score(Model())
    assert _texts(sites) == ["return next(model.loss() for _ in range(1))  # in one line", "sites = _score(Model())"]


def test_method_that_a_framework_calls_is_the_caller() -> None:
    framework = types.ModuleType("framework")
    code = compile("def fit(model):\n    return model.loss()", "framework.py", "exec")
    exec(code, vars(framework))
    library = torch.__file__.replace("__init__.py", "framework.py")
    framework.fit.__code__ = framework.fit.__code__.replace(co_filename=library)
    sites = framework.fit(Model())
    assert _texts(sites) == ["return self.encoder()", "sites = framework.fit(Model())"]


@dataclasses.dataclass
class Sample:
    value: int

    def __post_init__(self) -> None:
        self.frames = [sys._getframe(1), user_frame(sys._getframe(1))]


def test_generated_function_is_not_user_code() -> None:
    written, users = Sample(1).frames
    assert written is not None and written.f_code.co_filename == "<string>"
    assert users is not None and users.f_code.co_name == "test_generated_function_is_not_user_code"


def test_functions_in_executed_text_are_user_code() -> None:
    scope: dict[str, Any] = {"look": lambda: user_frame(sys._getframe(1))}
    exec("def inner():\n    return look()\nfound = inner()", scope)
    assert (scope["found"].f_code.co_filename, scope["found"].f_code.co_name) == ("<string>", "inner")


def _judge_string(answers: Any) -> None:
    answers.put(is_user_code("<string>"))


def test_command_that_starts_a_child_process_is_not_user_code() -> None:
    assert is_user_code("<string>"), "an exec'ed configuration"
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_judge_string, args=(answers,))
    child.start()
    assert answers.get(timeout=60) is False
    child.join()
