"""What texts of workloads mean, and what is said about those that mean nothing."""

import pytest

from headgate.workload.arrival import WorkloadError
from headgate.workload.spec import Range, Stream, parse


def test_one_source_with_options() -> None:
    assert parse("gamma:rate=2.5,cv=3,prompt=50-200,output=64,lane=fast,stream=no") == [
        Stream(source="gamma", rate=2.5, cv=3.0, prompt=Range(50, 200), output=Range(64, 64), lane="fast", stream=False)
    ]


def test_a_mix_of_named_streams() -> None:
    text = "interactive=poisson:rate=8,lane=fast; long = azure-conv : rate=0.5; servegen:m-small,rate=1,tenant=a|b"
    interactive, long, day = parse(text)
    assert (interactive.name, interactive.source, interactive.rate) == ("interactive", "poisson", 8.0)
    assert (long.name, long.source, long.rate) == ("long", "azure-conv", 0.5)
    assert (day.name, day.source, day.argument, day.tenant) == ("", "servegen", "m-small", ("a", "b"))


def test_hyphens_and_underscores_are_the_same_in_options() -> None:
    assert parse("azure-code:time-scale=2,max-prompt=99") == parse("azure-code:time_scale=2,max_prompt=99")


def test_a_path_may_have_an_equals_sign() -> None:
    assert parse("file:/tmp/a=b.csv,rate=1")[0].argument == "/tmp/a=b.csv"
    assert parse("mooncake:rate=1,file=/tmp/a=b.jsonl")[0].file == "/tmp/a=b.jsonl"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poison:rate=1", "did you mean 'poisson'?"),
        ("servegen:m-smal", "did you mean 'm-small'?"),
        ("servegen", "which model?"),
        ("poisson:rat=1", "did you mean 'rate'?"),
        ("poisson:8", "options look like key=value"),
        ("poisson:rate=0", "rate is a number above 0"),
        ("poisson:rate=fast", "not 'fast'"),
        ("poisson:rate=nan", "not 'nan'"),
        ("poisson:rate=1,rate=2", "rate is given twice"),
        ("poisson:prompt=9-3", "so many tokens"),
        ("poisson:sessions=0", "a whole number from 1"),
        ("poisson:stream=maybe", "yes or no"),
        ("poisson:lane=a b", "a name without spaces"),
        ("poisson:cv=2", "try gamma:cv=2"),
        ("poisson:start=5", "time_scale and start are for traces"),
        ("gamma:rate=1", "how bursty?"),
        ("poisson:lengths=azure", "did you mean 'azure-conv'?"),
        ("poisson:lengths=sharegpt,prompt=5", "lengths sets prompt and output both"),
        ("sharegpt:sessions=5", "sessions and shared beginnings of its own"),
        ("mooncake:shared=512", "shared beginnings of its own"),
        ("file", "Say file:PATH"),
        ("azure", "Say azure:file=PATH; azure-conv and azure-code need none"),
        ("azure:file=,rate=1", "azure: file is a path"),
        ("poisson:file=x", "file is for mooncake and azure; any known format is file:PATH"),
        ("a=poisson:rate=1;a=gamma:rate=1,cv=2", "two streams of the mix are called 'a'"),
        ("poisson:rate=1;poisson:rate=2", "two streams of the mix are called 'poisson'"),
        (" ; ", "no workload"),
        ("!!", "it looks like NAME=SOURCE:key=value"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
