"""The notes of a session: sentences about what could not be observed or determined, and what was disabled."""

from __future__ import annotations

from typing import Final

from slipstream.records import IdleGpu, Session

IDLE_GPU: Final = "The device is the CPU although a GPU is present"


def all_notes(session: Session) -> list[str]:
    """Returns the notes about the machine and the trials, then the notes of the diagnosis."""
    return [
        *([idle_gpu_sentence(session, session.idle_gpu)] if session.idle_gpu is not None else []),
        *session.notes,
        *([no_overlay_sentence(session.no_overlay)] if session.no_overlay else []),
        *(session.diagnosis_notes or []),
    ]


def idle_gpu_sentence(session: Session, gpu: IdleGpu) -> str:
    """Returns sentences that say that the GPU is not used, why, and what to do."""
    facts = session.environment.torch
    match gpu.cause:
        case "cpu_build":
            version = f" ({facts.version})" if facts is not None else ""
            reason = f"this torch{version} was built for the CPU only. Install a build for your GPU."
        case "invisible":
            reason = "torch cannot see it. Check the driver and CUDA_VISIBLE_DEVICES."
        case "unused":
            device = facts.accelerator if facts is not None else "cuda"
            reason = f'move the model and its batches there, .to("{device}").'
    return f"{IDLE_GPU} ({gpu.name}): {reason}"


def no_overlay_sentence(reason: str) -> str:
    return (
        f"No throw-away file system was possible ({reason}). Checkpoints and logs of known libraries were redirected"
        " and deleted. Other files that the script wrote are still there."
    )
