"""Finds sizes that the hardware handles badly: dimensions of linear layers and convolutions that only partly fill the
last tile of a matrix unit. Reports the share of the contraction time that such modules take."""

from __future__ import annotations

from torch import nn

from slipstream.observe.anatomy.modules import ModuleEntry
from slipstream.records import Misalignment

TILE = 8
VOCABULARY_TILE = 64
VOCABULARY_LEAST = 1000


def find_misalignments(entries: list[ModuleEntry], contraction_ns: dict[int, int], limit: int) -> list[Misalignment]:
    """Returns the misaligned dimensions, largest share first. `contraction_ns` maps an index into the entries to the
    time of forward and backward together."""
    total_ns = sum(contraction_ns.values())
    vocabularies = {entry.module.num_embeddings for entry in entries if isinstance(entry.module, nn.Embedding)}
    found = []
    for index, entry in enumerate(entries):
        spent_ns = contraction_ns.get(index, 0)
        if not spent_ns:
            continue
        for dimension, size, tile in _list_dimensions(entry.module, vocabularies):
            if size > tile and size % tile:
                wanted = -(-size // tile) * tile
                share = spent_ns / total_ns
                found.append(Misalignment(entry.path, entry.class_name, dimension, size, wanted, share))
    return sorted(found, key=lambda misalignment: -misalignment.share)[:limit]


def _list_dimensions(module: nn.Module, vocabularies: set[int]) -> list[tuple[str, int, int]]:
    if isinstance(module, nn.Linear):
        is_head = module.out_features in vocabularies and module.out_features >= VOCABULARY_LEAST
        out_tile = VOCABULARY_TILE if is_head else TILE
        return [("in_features", module.in_features, TILE), ("out_features", module.out_features, out_tile)]
    # Grouped convolutions use other tiles.
    if isinstance(module, nn.modules.conv._ConvNd) and module.groups == 1:
        return [("in_channels", module.in_channels, TILE), ("out_channels", module.out_channels, TILE)]
    return []
