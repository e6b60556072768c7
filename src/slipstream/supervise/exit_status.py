"""The exit code of a finished check, and the sentence that explains an exit code that is not the script's."""

from __future__ import annotations

from slipstream.launch.target import display_name
from slipstream.records import Session

EXIT_NOTHING_SEEN = 2
_NO_CUDA = (
    "not compiled with CUDA enabled",
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "no CUDA-capable device",
    "CUDA is not available",
    "CUDA driver initialization failed",
    "torch.cuda.is_available() is False",
)


def exit_code(session: Session) -> int:
    """Returns the script's exit code. Returns 2 if the script lacks a CUDA device, or if it ended without an error but
    had no step and no evaluation to observe."""
    if _needs_cuda(session) or (session.ending.exit_code == 0 and not _saw_something(session)):
        return EXIT_NOTHING_SEEN
    return session.ending.exit_code


def remark(session: Session) -> str:
    """Returns a sentence that explains an exit code of slipstream, or "" if the exit code is the script's."""
    if _needs_cuda(session):
        return (
            "The script asks for a CUDA device, and this machine has none that torch can use."
            f" Run slipstream {session.command} on the machine where it trains, or let the script choose the CPU."
        )
    if session.ending.exit_code == 0 and not _saw_something(session):
        called = "no training or inference step was completed" if session.models else "no module was called"
        return (
            f"{display_name(session.script)} ran to its end in {session.ending.seconds:.1f} s; {called},"
            " so there was no step to look at."
        )
    return ""


def _saw_something(session: Session) -> bool:
    return bool(session.steps or session.evaluations)


def _needs_cuda(session: Session) -> bool:
    ending = session.ending
    return (
        ending.reason == "raised"
        and not session.steps
        and not session.environment.gpus
        and any(words in ending.message for words in _NO_CUDA)
    )
