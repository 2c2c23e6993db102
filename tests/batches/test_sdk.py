"""Batches and files as the official client uses them, unmodified."""

from pathlib import Path

import openai
import pytest

from tests.batches.site import begin, jsonl, line, over, results, served

pytestmark = pytest.mark.timeout(60)


def test_a_batch_from_upload_to_results(tmp_path: Path) -> None:
    with served(tmp_path) as ai:
        batch = begin(ai, [line(number) for number in range(30)], metadata={"night": "first"})
        assert batch.status == "validating"
        done = over(ai, batch.id)
        assert done.status == "completed"
        assert done.request_counts is not None
        assert done.request_counts.to_dict() == {"total": 30, "completed": 30, "failed": 0}
        assert done.metadata == {"night": "first"}
        assert done.error_file_id is None
        told = results(ai, done.output_file_id)
        assert [one["custom_id"] for one in told] == [f"line-{number}" for number in range(30)]
        assert all(one["response"]["status_code"] == 200 and one["error"] is None for one in told)
        assert all(one["response"]["body"]["choices"][0]["message"]["content"] for one in told)
        assert done.usage is not None
        assert done.usage.output_tokens > 0
        assert [one.id for one in ai.batches.list(limit=1)] == [batch.id]
        assert {one.purpose for one in ai.files.list()} == {"batch", "batch_output"}


def test_files_are_listed_read_and_deleted(tmp_path: Path) -> None:
    with served(tmp_path) as ai:
        content = jsonl([line(1), line(2)])
        made = [ai.files.create(file=(f"{number}.jsonl", content), purpose="batch") for number in range(3)]
        assert made[0].bytes == len(content)
        assert made[0].filename == "0.jsonl"
        assert [one.id for one in ai.files.list(limit=2)] == [one.id for one in reversed(made)]
        assert [one.id for one in ai.files.list(order="asc")] == [one.id for one in made]
        assert ai.files.retrieve(made[1].id) == made[1]
        assert ai.files.content(made[1].id).read() == content
        assert ai.files.delete(made[1].id).deleted
        with pytest.raises(openai.NotFoundError, match="no file"):
            ai.files.retrieve(made[1].id)
