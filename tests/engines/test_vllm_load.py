# SPDX-License-Identifier: Apache-2.0
"""Load format "caid" in real vLLM: the tokens of an engine that maps are those of one that has loaded by vLLM's own
loader, and the weights are in memory once."""

import numpy
import pytest

LARGE = 4096  # bytes, above which no tensor is a process's own


def sets(client):
    return [entry.name for entry in client.list() if entry.name.endswith("/")]


@pytest.mark.parametrize("model", ["one", "tied", "half"])
def test_two_engines_have_one_set_and_the_tokens_of_vllms_own_loader(client, engine, models, own, model):
    engines = [engine(models[model]) for _ in range(2)]
    assert [e("tokens") for e in engines] == [own(model)] * 2
    (first,), (second,) = (e.said() for e in engines)
    assert first.startswith("published llama.") and second.startswith("mapped llama.")
    told = [e("told")[0] for e in engines]
    check_shared(told)
    (name,) = sets(client)
    assert f" {name[:-1]}@1 in " in first and f" {name[:-1]}@1 in " in second
    engines[0].kill()
    client.unlink(name)
    assert engines[1]("tokens") == own(model)


def check_shared(told):
    """What is large lies in one piece of memory that all have, read-only, whose pages each process has but a part of."""
    where = [one["where"] for one in told]
    assert all(here.keys() == where[0].keys() for here in where)
    large = [name for name, (_, _, nbytes) in where[0].items() if nbytes > LARGE]
    assert len(large) > 10
    (inode,) = {here[name][0] for here in where for name in large}
    assert {here[name][1] for here in where for name in large} == {"r--s"}
    nbytes = sum(where[0][name][2] for name in large)
    for one in told:
        rss, pss = one["pages"][str(inode)]
        assert rss * 1024 > nbytes * 0.9 and pss * len(told) < rss * 1.2, (rss, pss, nbytes)


def test_vllms_processes_of_their_own_share_too(client, engine, models, own):
    """The engine's core and its worker are apart from who asks."""
    engines = [engine(models["one"], env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}) for _ in range(2)]
    assert [e("tokens") for e in engines] == [own("one")] * 2
    told = [e("told")[0] for e in engines]
    check_shared(told)
    assert {one["pid"] for one in told}.isdisjoint({e.process.pid for e in engines}) and len(sets(client)) == 1


def test_each_rank_of_two_has_a_set(client, engine, models, own):
    want = own("one", tensor_parallel_size=2)
    engines = [engine(models["one"], tensor_parallel_size=2) for _ in range(2)]
    assert [e("tokens") for e in engines] == [want] * 2
    told = [e("told") for e in engines]
    for rank in range(2):
        check_shared([ranks[rank] for ranks in told])
    assert len(sets(client)) == 2


def test_two_fine_tunes_under_one_name_are_both_right(client, engine, models, own):
    options = {"model_loader_extra_config": {"name": "policy"}}
    engines = [engine(models[name], **options) for name in ("one", "two", "one", "two")]
    assert own("one") != own("two")
    assert [e("tokens") for e in engines] == [own("one"), own("two")] * 2
    assert len(sets(client)) == 2 and [e.said()[0].partition(" ")[0] for e in engines] == ["published"] * 2 + ["mapped"] * 2


def test_of_several_that_start_at_once_one_loads(client, start, models, own):
    engines = [start(models["one"], load_format="caid") for _ in range(3)]
    assert [e.answer() for e in engines] == ["ready"] * 3
    assert [e("tokens") for e in engines] == [own("one")] * 3
    assert sorted(e.said()[0].partition(" ")[0] for e in engines) == ["mapped", "mapped", "published"]


def test_a_version_that_does_not_fit_is_refused(client, engine, models, own):
    engine(models["one"])
    (name,) = sets(client)
    with client.open_set(name, "rw") as right:
        arrays = right.open()
        right_text = arrays["caid.vllm"].copy_to_host().tobytes()
        for change, why in (
            ((b"[256,512]", b"[512,256]"), "in the set <f4 (256, 512)"),  # seen before vLLM's model is made, and behind it
            ((b'"tensors":{', b'"tensors":{"no.such":["parameter","<f4",[0],false],'), "no module 'no'"),
        ):
            text = numpy.frombuffer(right_text.replace(*change), "u1")
            client.publish_many(name, {**arrays, "caid.vllm": text})
            other = engine(models["one"])
            (said,) = other.said()
            assert said.startswith("this engine loads the model from its files") and why in said
            assert other("tokens") == own("one")


def test_a_reload_of_vllms_own_leaves_the_others_alone(client, engine, models, own):
    first, second = (engine(models["one"]) for _ in range(2))
    first("reload_weights")
    assert first("tokens") == second("tokens") == own("one")
