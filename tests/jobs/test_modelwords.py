from typing import Any

import pytest

from jobs.modelwords import compute_kind, micro_step_ms, model_words, scale_words
from jobs.report.run_header import conditions, estimate_s, run_header, start_words
from jobs.spec import load_job
from tests.jobs.samples import flat, run_json, text_of

WIDTHS = (80, 100, 120)


def job(name: str, *sets: str) -> dict[str, Any]:
    return load_job(name, sets).model_dump(mode="json")


@pytest.mark.parametrize(
    ("name", "sets", "words"),
    [
        ("hier", (), "byte-GPT, 4 layers of width 128"),
        ("hier", ("model.layers=1",), "byte-GPT, 1 layer of width 128"),
        ("mini-mlp", (), "mini-MLP, 3 layers of width 64"),
        ("deep", (), "deep MLP, 75 layers of width 32"),
        ("resnet-bn", (), "ResNet with batch norms, 3 layers of width 32"),
        ("unused", (), "mixture of experts, 1 of 4 in use, of width 64"),
        ("7b-thousandth", (), "paced compute, 32 layers of 0.44 MB of gradients"),
        ("hier", ("model.import=/a/my.py:build_it",), "build_it of my.py"),
    ],
)
def test_a_model_in_words(name: str, sets: tuple[str, ...], words: str) -> None:
    assert model_words(job(name, *sets)["model"]) == words


@pytest.mark.parametrize(
    ("name", "sets", "milliseconds", "kind", "scale"),
    [
        ("hier", (), 180, "paced", None),
        ("hier", ("pace=null",), None, "real", None),
        ("hier", ("pace=null", "model.kind=paced"), 300, "paced", None),
        (
            *("7b-thousandth", (), 500, "paced"),
            "1 byte stands for 1,000; latency is not scaled",
        ),
    ],
)
def test_what_the_computing_is(
    name: str, sets: tuple[str, ...], milliseconds: float | None, kind: str, scale: str | None
) -> None:
    about = job(name, *sets)
    assert micro_step_ms(about) == milliseconds
    assert compute_kind(about) == kind
    assert scale_words(about) == scale


@pytest.mark.parametrize("width", WIDTHS)
def test_the_header_of_a_paced_model(width: int) -> None:
    run = run_json(job=job("7b-thousandth", "train.accumulate=2"))
    lines = run_header(
        run, 'Lab "default": 2 nodes x 2 ranks, 200 Mbit/s', "The least a network carries.", width
    )
    assert flat(text_of(lines, width)).strip() == (
        'Job "7b-thousandth": paced compute, 32 layers of 0.44 MB of gradients; batch 2 per rank, '
        "8 in all hierarchical: The least a network carries. "
        "Computing is paced: nothing but sleep, 1,000 ms a step. "
        "1 byte stands for 1,000; latency is not scaled. "
        'Lab "default": 2 nodes x 2 ranks, 200 Mbit/s. About 50 s.'
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_the_header_of_a_model_of_ones_own(width: int) -> None:
    run = run_json(job=job("hier", "model.import=/a/very/long/way/to/it/my.py:build", "pace=null"))
    text = text_of(run_header(run, 'Lab "default": 2 nodes', "Adds up.", width), width)
    assert flat(text).startswith('Job "hier": build of my.py; batch 8 per rank, 32 in all')
    assert "About" not in text
    assert "paced" not in text


def test_times_of_ranks_without_cores_are_doubted_unless_they_are_paced() -> None:
    for name, sets, doubted in (
        ("7b-thousandth", (), False),
        ("hier", (), False),
        ("hier", ("pace=null",), True),
    ):
        sentences = conditions(run_json(job=job(name, *sets), host={"cores": 2}))
        (crowded,) = [each for each in sentences if each.startswith("Ranks outnumber cores")]
        assert ("are not those of ranks with cores" in crowded) == doubted


def test_a_paced_run_can_be_estimated() -> None:
    assert estimate_s(run_json(job=job("7b-thousandth"))) == 5 + 0.5 * (20 + 2 + 20)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (130, "130 parameters = 520 bytes of gradients a step; the same start on 2 of 2 ranks"),
        (41_344, "0.04 M parameters = 0.17 MB of gradients a step; the same start on 2 of 2 ranks"),
        (3_500_000, "3.50 M parameters = 14.0 MB of gradients a step; the same start on 2 of 2"),
    ],
)
def test_the_size_of_a_model_in_words(parameters: int, words: str) -> None:
    header = {"model_parameters": parameters, "gradient_bytes": 4 * parameters}
    assert start_words(header, ["a", "a"]).startswith(words)
