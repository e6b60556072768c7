"""Images, sound or video are decoded again in every epoch."""

from __future__ import annotations

from slipstream.diagnose.gain import gain_of
from slipstream.diagnose.hotspots import hottest_line, total
from slipstream.diagnose.input_path import costs_time, input_path, step_after
from slipstream.diagnose.measured import about_decoding, sample_ms
from slipstream.diagnose.training import is_single_epoch
from slipstream.diagnose.wording import joined, ms, percent, taking
from slipstream.records import Finding, Session, StackCount, Summary

LEAST_SHARE = 0.3  # of the work on a batch
CACHED = 0.95  # a cache of decoded pixels leaves a copy out of a memory map
QUICKER = 0.1  # what decoding less saves of each decode, where there is no second epoch to cache for


def find(session: Session, summary: Summary) -> list[Finding]:
    path = input_path(session, summary)
    if path is None or not costs_time(summary, path):
        return []
    stacks = [stack for stack in path.stacks if stack.stage == "decode"]
    share = path.share(stacks)
    if share < LEAST_SHARE:
        return []
    # Against no_workers the larger prediction comes first. On few cores that is the cache (workers only spread the
    # decoding over cores that the step also needs), on many cores the workers: both orders are right there.
    is_single = is_single_epoch(session)
    removed = share * (QUICKER if is_single else CACHED)
    then_ms = step_after(session, summary, path, work_ms=path.work_ms * (1 - removed))
    hot = hottest_line(session, stacks)
    return [
        Finding(
            cause="slow_decode",
            title=taking("Decoding", share),
            evidence=f"Decoding is {percent(share)} of the {ms(path.work_ms)} ms that a step's batch takes to build; "
            f"the step waits {ms(path.wait_ms)} of {ms(summary.step_ms)} ms.",
            predicted_gain=gain_of(summary.step_ms, then_ms),
            change="decode once, np.save the pixels, np.load(..., mmap_mode='r') from then on; or store smaller images",
            site=hot.site if hot else path.loader.getitem_site or path.loader.site,
            techniques=["fast_decode", "scaled_decode"] if is_single else ["decode_cache", "fast_decode"],
            advice=joined(
                "" if is_single else "The first epoch still decodes; the gain is that of all later ones.",
                about_decoding(session, sample_ms(summary, share * path.work_ms)) if _is_pillows(stacks) else "",
            ),
        )
    ]


def _is_pillows(stacks: list[StackCount]) -> bool:
    """All but a few of them, and so images."""
    return total(stacks, lambda stack: "PIL/" in stack.leaf) >= 0.9 * total(stacks)
