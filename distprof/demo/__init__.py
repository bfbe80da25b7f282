"""A real recording that comes with distprof, for a first look.

``dlrm-v100-8gpu`` is one step of a recommendation model (DLRM, hybrid parallel) on 8 Tesla V100 in
one node, ranks 0 to 3, recorded in September 2023. Source: facebookresearch/param at commit
1e115ffc62c6d048405d9b963191736c13811b1d, ``et_replay/tests/inputs/dlrm_kineto.tar.gz``, published
under the MIT licence (``LICENSE.param.txt``).
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "dlrm-v100-8gpu"
"""Traces of four ranks."""

ABOUT = (
    "A real recording: one step of DLRM on 8 V100 GPUs, ranks 0-3 (facebookresearch/param, MIT)."
)
