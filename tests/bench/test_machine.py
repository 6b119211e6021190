"""The probe of the machine, and the facts that are kept with a measurement."""

from mereo.bench.machine import IDENTITY, machine_facts, probe


def test_a_machine_multiplies_and_copies():
    rates = probe(1, seconds=0.0, side=64)
    assert rates.matmul > 1e6 and rates.copy > 1e6


def test_facts_identify_the_machine():
    facts = machine_facts()
    assert all(facts[name] for name in IDENTITY) and facts["memory"] > 2**20
