"""Matrices of nvidia-smi topo -m: a real one, as people save them, and broken."""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.errors import InputError
from distprof.ingest.kinds.machine import fits_machine, parse_machines, read_machine
from distprof.run.evidence import Machine

GOLDEN = Path(__file__).parents[2] / "golden" / "machine" / "topo-m-8xh200-roce.txt"
REAL = GOLDEN.read_text()

TWO_PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tSYS\tSYS\tPHB\t0-15\t0
GPU1\tNV4\t X \tSYS\tSYS\tPHB\t0-15\t0
GPU2\tSYS\tSYS\t X \tNV4\tSYS\t16-31\t1
GPU3\tSYS\tSYS\tNV4\t X \tSYS\t16-31\t1
mlx5_0\tPHB\tPHB\tSYS\tSYS\t X
"""


def only(text: str) -> Machine:
    (machine,) = parse_machines(text).machines
    return machine


def test_the_facts_of_a_real_host():
    (machine,) = read_machine(str(GOLDEN)).machines
    assert machine.gpus == tuple(f"GPU{n}" for n in range(8))
    assert machine.cards[0] == "rocep145s0"
    assert machine.cards[7] == "rocep206s0"
    assert machine.islands == (tuple(range(8)),)
    assert machine.links[0][7] == "NV18"
    assert machine.nearest_cards(2) == ("PIX", (2, 3))
    assert machine.path_to_card(0, 2) == "NODE"
    assert machine.path_to_card(0, 4) == "SYS"
    assert machine.cpus[4] == "56-111,168-223"
    assert machine.numa == ("0",) * 4 + ("1",) * 4


def test_pairs_joined_by_bridges_are_islands_and_far_cards_are_across_sockets():
    machine = only(TWO_PAIRS)
    assert machine.islands == ((0, 1), (2, 3))
    assert machine.nearest_cards(0) == ("PHB", (0,))
    assert machine.nearest_cards(3) == ("SYS", (0,))
    assert machine.cards == ("mlx5_0",)


def test_columns_pasted_with_spaces_are_the_same():
    assert only(TWO_PAIRS.expandtabs(9)) == only(TWO_PAIRS)


def test_a_gpu_alone_has_no_card():
    machine = only("\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-23\t0\t\tN/A\n")
    assert machine.cards == ()
    assert machine.nearest_cards(0) == ("", ())


@pytest.mark.parametrize(
    "title",
    ["node-1", "=== node-1 ===", "host: node-1", "---------\nnode-1\n---------", "# node-1:"],
)
def test_the_line_before_a_matrix_names_its_host(title):
    assert only(f"{title}\n{TWO_PAIRS}").host == "node-1"


@pytest.mark.parametrize("title", ["$ nvidia-smi topo -m", "Done", "17", "Legend:", ""])
def test_other_lines_name_no_host(title):
    assert only(f"{title}\n{TWO_PAIRS}").host == ""


def test_hosts_one_after_another():
    found = parse_machines(f"node-1\n{REAL}\nnode-2\n{TWO_PAIRS}").machines
    assert [(machine.host, len(machine.gpus)) for machine in found] == [
        ("node-1", 8),
        ("node-2", 4),
    ]


def test_hosts_line_by_line_behind_their_names():
    lines = [f"node-{n}: {line}" for line in REAL.splitlines() for n in (1, 2)]
    first, second = parse_machines("\n".join(lines)).machines
    assert (first.host, second.host) == ("node-1", "node-2")
    assert first.links == second.links == only(REAL).links
    assert first.cards == second.cards == only(REAL).cards


def test_a_task_number_before_lines_is_no_host():
    assert only("\n".join(f"0: {line}" for line in TWO_PAIRS.splitlines())).host == ""


def test_a_matrix_shown_twice_is_one_machine():
    assert len(parse_machines(TWO_PAIRS + TWO_PAIRS).machines) == 1


def test_of_a_matrix_without_all_its_rows_only_those_gpus_are_read_and_it_is_said():
    lines = TWO_PAIRS.splitlines()
    found = parse_machines("\n".join(("node-1", *lines[:3])))
    (machine,) = found.machines
    assert (machine.gpus, machine.num_cut) == (("GPU0", "GPU1"), 2)
    assert machine.islands == ((0, 1),)
    assert found.notes == (
        "A matrix of nvidia-smi topo -m of node-1 lacks the rows of 2 of 4 GPUs, which are left "
        "out.",
    )
    assert parse_machines("\n".join(lines[:2])).machines == ()  # a single row says little


def test_a_card_without_a_row_has_what_the_gpus_say():
    machine = only("\n".join(TWO_PAIRS.splitlines()[:-1]))
    assert machine.path_to_card(0, 0) == "PHB"


def test_a_zipped_file_fits_and_other_files_do_not(tmp_path):
    zipped = tmp_path / "topo.txt.gz"
    zipped.write_bytes(gzip.compress(REAL.encode()))
    assert fits_machine(str(zipped))
    other = tmp_path / "notes.txt"
    other.write_text("GPU0 is slow\n")
    assert not fits_machine(str(other))
    assert not fits_machine(str(tmp_path))
    assert not fits_machine(str(tmp_path / "missing.txt"))


def test_a_file_without_a_matrix_is_refused_with_a_way_out(tmp_path):
    path = tmp_path / "topo.txt"
    path.write_text("nothing\n")
    with pytest.raises(InputError, match="nvidia-smi topo -m"):
        read_machine(str(path))
    with pytest.raises(InputError, match="no file with this name"):
        read_machine(str(tmp_path / "missing.txt"))


def test_control_characters_reach_nobody():
    evil = TWO_PAIRS.replace("mlx5_0\tCPU", "mlx5_\x1b[2J0\tCPU").replace("GPU1", "GPU1\x07")
    for machine in parse_machines("no\x1b]0;de-1\n" + evil).machines:
        assert all(text.isprintable() for text in (machine.host, *machine.cards, *machine.gpus))


PIECES = (
    "GPU0",
    "GPU1",
    "NIC0",
    "\t",
    "\n",
    " X ",
    "NV18",
    "SYS",
    "CPU Affinity",
    "node-1: ",
    "\x1b[4m",
    "é",
    ":",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_pieces_in_any_order_never_raise(pieces):
    for machine in parse_machines("".join(pieces)).machines:
        size = len(machine.gpus) + len(machine.cards)
        assert len(machine.links) == size
        assert all(len(row) == size for row in machine.links)


def test_a_thousand_mutations_of_a_real_file_never_raise():
    chance = random.Random(7)
    for _ in range(1_000):
        text = list(REAL)
        for _ in range(chance.randrange(1, 40)):
            text[chance.randrange(len(text))] = chance.choice("\t\n GPUNVX0918:\x1b\0")
        for machine in parse_machines("".join(text)).machines:
            assert machine.islands
            assert all(machine.nearest_cards(gpu) for gpu in range(len(machine.gpus)))


@pytest.mark.corpus
@pytest.mark.skipif("DISTPROF_CORPUS" not in os.environ, reason="DISTPROF_CORPUS is not set")
def test_captures_of_nvidia_smi_hold_a_matrix_among_much_else():
    folder = Path(os.environ["DISTPROF_CORPUS"]).parent / "logs" / "gpu" / "nvidia-smi-capture"
    files = sorted(folder.glob("*.gz"))
    assert files
    for path in files:
        (machine,) = read_machine(str(path)).machines
        assert machine.gpus == ("GPU0",)
