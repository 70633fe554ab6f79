import json
import math
import warnings
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.data.bad_rows import BadRowsError
from e3rl.data.problem import Problem
from e3rl.data.problems import E3_COLUMNS, Columns, ProblemSet, load_problems

E3_DATA = Path(__file__).parents[3] / "shared" / "data"
needs_e3_data = pytest.mark.skipif(
    not E3_DATA.is_dir(), reason="the E3 sample data are not beside the repository"
)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def good(number, **more):
    return {"prompt": f"What is {number} + 1?", "answer": str(number + 1), **more}


def e3_row(number, **more):
    return {
        "data_source": "math",
        "prompt": [{"role": "user", "content": f"What is {number} + 1?"}],
        "ability": "math",
        "rank": number / 10,
        "reward_model": {"ground_truth": str(number + 1), "style": "rule"},
        **more,
    }


def faults_of(error):
    return [(bad.row, fault.reason) for bad in error.value.bad for fault in bad.faults]


def test_jsonl_rows_become_problems_with_row_ids_and_the_stem_as_source(tmp_path):
    path = write_jsonl(tmp_path / "sums.jsonl", [good(1), good(2, source="aime")])
    assert list(load_problems(path)) == [
        Problem("sums:0", "What is 1 + 1?", "2", "sums"),
        Problem("sums:1", "What is 2 + 1?", "3", "aime"),
    ]


def test_a_row_that_is_dropped_leaves_its_id_to_a_later_one(tmp_path):
    rows = [good(1, id="a", answer=""), good(2, id="a"), good(3, id="b")]
    with pytest.warns(UserWarning, match="missing answer"):
        found = load_problems(write_jsonl(tmp_path / "sums.jsonl", rows), on_bad_row="skip")
    assert [problem.answer for problem in found] == ["3", "4"]
    assert [problem.id for problem in found] == ["a", "b"]


def test_a_question_of_which_strip_leaves_nothing_is_a_bad_row(tmp_path):
    rows = [good(1, prompt="Q: 1 + 1?"), good(2, prompt="Q: ")]
    with pytest.raises(BadRowsError) as error:
        load_problems(write_jsonl(tmp_path / "sums.jsonl", rows), strip=["Q: "])
    assert faults_of(error) == [(1, "missing prompt")]


def test_parquet_of_the_e3_schema_loads_chats_nested_answers_and_ranks(tmp_path):
    path = tmp_path / "train.parquet"
    pd.DataFrame([e3_row(1), e3_row(2)]).to_parquet(path)
    assert list(load_problems(path, E3_COLUMNS)) == [
        Problem(
            f"train:{row}",
            ({"role": "user", "content": f"What is {row + 1} + 1?"},),
            str(row + 2),
            "math",
            prior=(row + 1) / 10,
            row={
                "ability": "math",
                "reward_model": {"ground_truth": str(row + 2), "style": "rule"},
            },
        )
        for row in (0, 1)
    ]


def test_explicit_ids_levels_and_priors_are_kept_and_integers_become_text(tmp_path):
    path = write_jsonl(
        tmp_path / "a.jsonl",
        [
            {"prompt": "x", "answer": 7, "id": 12, "level": 3, "prior": 0},
            {"prompt": "y", "answer": " 1/2\n", "id": "b", "level": 3.0, "prior": None},
        ],
    )
    assert list(load_problems(path)) == [
        Problem("12", "x", "7", "a", level=3, prior=0.0),
        Problem("b", "y", "1/2", "a", level=3),
    ]


def test_a_given_name_replaces_the_stem_in_ids_and_sources(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [good(1)])
    (problem,) = load_problems(path, name="other")
    assert (problem.id, problem.source) == ("other:0", "other")


def test_blank_lines_are_no_rows_but_keep_row_numbers_at_line_numbers(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(good(1)) + "\n\n" + json.dumps(good(2)) + "\n\n")
    assert [p.id for p in load_problems(path)] == ["a:0", "a:2"]


def test_a_byte_order_mark_windows_line_ends_and_unicode_separators_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    row = json.dumps({"prompt": "a\u2028b", "answer": "π"}, ensure_ascii=False)
    path.write_bytes(b"\xef\xbb\xbf" + f"{row}\r\n".encode())
    (problem,) = load_problems(path)
    assert (problem.prompt, problem.answer) == ("a\u2028b", "π")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "1"}, "missing prompt"),
        ({"prompt": "", "answer": "1"}, "missing prompt"),
        ({"prompt": " \n", "answer": "1"}, "missing prompt"),
        ({"prompt": [], "answer": "1"}, "missing prompt"),
        ({"prompt": [{"role": "user", "content": " "}], "answer": "1"}, "missing prompt"),
        (
            {
                "prompt": [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": "1"},
                ],
                "answer": "1",
            },
            "missing prompt",
        ),
        ({"prompt": 3, "answer": "1"}, "wrong type"),
        ({"prompt": ["x"], "answer": "1"}, "broken chat"),
        ({"prompt": [{"role": "usr", "content": "x"}], "answer": "1"}, "broken chat"),
        ({"prompt": [{"role": "user", "content": None}], "answer": "1"}, "broken chat"),
        (
            {"prompt": [{"role": "user", "content": "x", "image": "i"}], "answer": "1"},
            "broken chat",
        ),
        ({"prompt": [{"role": "user", "content": "\ud800"}], "answer": "1"}, "broken chat"),
        ({"prompt": "x"}, "missing answer"),
        ({"prompt": "x", "answer": None}, "missing answer"),
        ({"prompt": "x", "answer": " "}, "missing answer"),
        ({"prompt": "x", "answer": 3.5}, "wrong type"),
        ({"prompt": "x", "answer": 2.0**53}, "wrong type"),
        ({"prompt": "x", "answer": math.inf}, "wrong type"),
        ({"prompt": "x", "answer": True}, "wrong type"),
        ({"prompt": "x", "answer": []}, "missing answer"),
        ({"prompt": "x", "answer": [None]}, "missing answer"),
        ({"prompt": "x", "answer": ["1", "2"]}, "several answers"),
        ({"prompt": "\ud800", "answer": "1"}, "not UTF-8"),
        ({"prompt": "x", "answer": "1", "id": 1.5}, "wrong type"),
        ({"prompt": "x", "answer": "1", "id": "first"}, "duplicate id"),
        ({"prompt": "x", "answer": "1", "source": 4}, "wrong type"),
        ({"prompt": "x", "answer": "1", "level": "Level 5"}, "wrong type"),
        ({"prompt": "x", "answer": "1", "level": 2.5}, "wrong type"),
        ({"prompt": "x", "answer": "1", "level": math.nan}, "wrong type"),
        ({"prompt": "x", "answer": "1", "prior": 1}, "prior out of range"),
        ({"prompt": "x", "answer": "1", "prior": -0.1}, "prior out of range"),
        ({"prompt": "x", "answer": "1", "prior": math.nan}, "prior out of range"),
        ({"prompt": "x", "answer": "1", "prior": "0.5"}, "wrong type"),
        (["x", "1"], "wrong type"),
    ],
)
def test_a_bad_row_is_reported_with_its_reason_and_dropped_on_request(tmp_path, row, reason):
    path = write_jsonl(tmp_path / "a.jsonl", [good(1, id="first"), row, good(2)])
    with pytest.raises(BadRowsError) as error:
        load_problems(path)
    assert faults_of(error) == [(1, reason)]
    with pytest.warns(UserWarning, match="dropped 1 of 3 rows"):
        kept = load_problems(path, on_bad_row="skip")
    assert [p.id for p in kept] == ["first", "a:2"]
    assert kept.rows == (0, 2)
    assert kept.dropped == {reason: 1}


def test_all_faults_of_a_file_come_in_one_report_with_rows_and_remedies(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [
        json.dumps(good(1)).encode(),
        b'{"prompt": "x", "answer": ',
        b'{"prompt": "\xff", "answer": "1"}',
        json.dumps({"prompt": "", "answer": "", "prior": 2}).encode(),
        b"[" * 100_000,
    ]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(BadRowsError) as error:
        load_problems(path)
    assert faults_of(error) == [
        (1, "broken JSON"),
        (2, "not UTF-8"),
        (3, "missing prompt"),
        (3, "missing answer"),
        (3, "prior out of range"),
        (4, "broken JSON"),
    ]
    message = str(error.value)
    assert f"{path}: 4 of 5 rows are bad" in message
    assert "row 3: missing answer: column 'answer' is empty; give the gold answer" in message
    assert "on_bad_row=skip" in message


def test_dropped_counts_sum_to_the_rows_that_are_gone(tmp_path):
    rows = [good(1), {"prompt": "", "answer": "", "prior": 2}, {"prompt": "x"}, {"prompt": "y"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.warns(UserWarning, match="missing answer: 2, missing prompt: 1"):
        kept = load_problems(path, on_bad_row="skip")
    assert kept.dropped == {"missing prompt": 1, "missing answer": 2}


def test_a_long_report_is_cut_after_twenty_rows_and_counts_the_rest(tmp_path):
    rows = [good(1), *({"prompt": f"x{i}"} for i in range(30)), {"answer": "1"}]
    with pytest.raises(BadRowsError) as error:
        load_problems(write_jsonl(tmp_path / "a.jsonl", rows))
    assert len(error.value.bad) == 31
    assert str(error.value).count("  row ") == 20
    assert "11 more bad rows (missing answer: 30, missing prompt: 1)" in str(error.value)


def test_parquet_rows_are_checked_like_jsonl_rows(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [
        e3_row(1),
        e3_row(2, reward_model={"ground_truth": None, "style": "rule"}),
        e3_row(3, rank=1.0),
        e3_row(4, prompt=None),
        e3_row(5, reward_model=None),
    ]
    pd.DataFrame(rows).to_parquet(path)
    with pytest.raises(BadRowsError) as error:
        load_problems(path, E3_COLUMNS)
    assert faults_of(error) == [
        (1, "missing answer"),
        (2, "prior out of range"),
        (3, "missing prompt"),
        (4, "missing answer"),
    ]


def test_a_parquet_text_that_is_not_utf8_is_a_bad_row(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    raw = pa.array([b"x", b"\xff", b"z"], type=pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": raw, "answer": ["1", "2", "3"]}), path)
    with pytest.raises(BadRowsError) as error:
        load_problems(path)
    assert faults_of(error) == [(1, "not UTF-8")]


def test_a_parquet_level_column_with_gaps_gives_whole_levels(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame([good(1, level=2), good(2)]).to_parquet(path)
    assert [p.level for p in load_problems(path)] == [2, None]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(answer="anwser"), "'anwser'; set columns.answer to one of: answer, prompt"),
        (Columns(answer="answer.text"), "'answer.text'; set columns.answer"),
        (Columns(prior="rnk"), "'rnk'; set columns.prior"),
    ],
)
def test_a_column_that_no_row_has_is_named_even_when_rows_may_be_skipped(
    tmp_path, columns, message
):
    path = write_jsonl(tmp_path / "a.jsonl", [good(1), good(2)])
    with pytest.raises(ValueError, match="no row has a value in column") as error:
        load_problems(path, columns, on_bad_row="skip")
    assert message in str(error.value)


def test_a_column_set_to_none_is_not_read(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [good(1, level="Level 5", id=1), good(2, id=1)])
    assert [p.id for p in load_problems(path, Columns(id=None, level=None))] == ["a:0", "a:1"]


def test_a_column_with_a_dot_in_its_own_name_is_found(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "x", "meta.answer": "1"}])
    assert load_problems(path, Columns(answer="meta.answer"))[0].answer == "1"


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl does not exist"):
        load_problems(tmp_path / "none.jsonl")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load_problems(tmp_path)
    (tmp_path / "a.csv").write_text("prompt,answer\nx,1\n")
    with pytest.raises(ValueError, match=r"a\.csv: unknown kind of file '\.csv'"):
        load_problems(tmp_path / "a.csv")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"empty\.jsonl holds no usable problem"):
        load_problems(tmp_path / "empty.jsonl")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match=r"cut\.parquet is not a readable parquet file"):
        load_problems(tmp_path / "cut.parquet")


def test_a_file_of_bad_rows_only_is_an_error_even_when_they_may_be_skipped(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "", "answer": "1"}] * 2 + [["x"]])
    with (
        pytest.warns(UserWarning, match="dropped 3 of 3"),
        pytest.raises(ValueError, match="holds no usable problem"),
    ):
        load_problems(path, on_bad_row="skip")


def test_an_unknown_way_to_treat_bad_rows_is_refused(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [good(1)])
    with pytest.raises(ValueError, match="on_bad_row is 'ignore'"):
        load_problems(path, on_bad_row="ignore")


def test_repeated_prompts_are_kept_and_counted_in_a_warning(tmp_path):
    chat = {"prompt": [{"role": "user", "content": "What is 1  + 1?"}], "answer": "3"}
    path = write_jsonl(tmp_path / "a.jsonl", [good(1), good(1), chat, good(2)])
    with pytest.warns(UserWarning, match="2 problems repeat .*; 1 questions have several"):
        problems = load_problems(path)
    assert len(problems) == 4


def test_whole_floats_and_lists_of_one_answer_are_read_as_what_they_stand_for(tmp_path):
    rows = [{"prompt": f"{a}?", "answer": a} for a in (27.0, -4.0, [7], ["x+1"], [2.0])]
    problems = load_problems(write_jsonl(tmp_path / "a.jsonl", rows))
    assert [p.answer for p in problems] == ["27", "-4", "7", "x+1", "2"]


def test_an_entry_of_a_list_is_chosen_by_its_number(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "x", "final_answer": ["1", "2"]}])
    assert load_problems(path, Columns(answer="final_answer.1"))[0].answer == "2"


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"source": "aime"}, [0, 3]),
        ({"source": ["aime", "math"]}, [0, 2, 3]),
        ({"source": "aime", "meta.year": 2024}, [3]),
        ({}, [0, 1, 2, 3]),
    ],
)
def test_where_picks_a_benchmark_out_of_a_file(tmp_path, where, kept):
    rows = [
        good(1, source="aime", meta={"year": 2023}),
        good(2, source="amc", meta={"year": 2024}),
        good(3, source="math", meta=None),
        good(4, source="aime", meta={"year": 2024}),
    ]
    problems = load_problems(write_jsonl(tmp_path / "test.json", rows), where=where)
    assert list(problems.rows) == kept
    assert [p.id for p in problems] == [f"test:{row}" for row in kept]
    assert problems.dropped == ({"not selected": 4 - len(kept)} if len(kept) < 4 else {})


def test_where_leaves_bad_rows_of_other_benchmarks_alone(tmp_path):
    rows = [good(1, source="aime"), {"prompt": "x", "source": "amc"}]
    assert (
        len(load_problems(write_jsonl(tmp_path / "a.jsonl", rows), where={"source": "aime"})) == 1
    )


def test_a_benchmark_that_a_file_does_not_have_is_refused_with_those_it_has(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [good(1, source="aime"), good(2, source="amc")])
    with pytest.raises(ValueError, match=r"source='aime24'; where.source may be 'aime', 'amc'"):
        load_problems(path, where={"source": "aime24"})


def test_repeated_questions_are_dropped_on_request_and_all_with_several_answers(tmp_path):
    chat = {"prompt": [{"role": "user", "content": "What is 1  + 1"}], "answer": "2"}
    rows = [good(1), chat, good(2), {**good(2), "answer": "4"}, good(3)]
    problems = load_problems(write_jsonl(tmp_path / "a.jsonl", rows), repeats="drop")
    assert list(problems.rows) == [0, 4]
    assert problems.dropped == {"repeated question": 1, "question with several answers": 2}
    with pytest.raises(ValueError, match="repeats is 'dorp': choose"):
        load_problems(tmp_path / "a.jsonl", repeats="dorp")
    disputed = write_jsonl(tmp_path / "b.jsonl", [good(2), {**good(2), "answer": "4"}])
    with pytest.raises(
        ValueError, match=r"b\.jsonl: repeats=drop leaves none of 2 problems, .*keep"
    ):
        load_problems(disputed, repeats="drop")


def test_a_file_of_the_dapo_kind_gives_bare_questions_of_its_first_block(tmp_path):
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "Solve it.\n\nWhat is 1 + 1?\n\nMind the form."}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "extra_info": {"index": "same"},
    }
    path = tmp_path / "dapo.parquet"
    pd.DataFrame([row, row, row, row]).to_parquet(path)
    problems = load_problems(
        path,
        Columns(answer="reward_model.ground_truth", source="data_source", id=None),
        strip=["Solve it.\n\n", "\n\nMind the form."],
        repeats="drop",
        limit=2,
    )
    (problem,) = problems
    assert problem.prompt == ({"content": "What is 1 + 1?", "role": "user"},)
    assert problems.dropped == {"repeated question": 1}


def test_a_problem_set_is_a_sequence_and_refuses_repeated_ids():
    problems = [Problem(str(i), f"q{i}", "1", "s") for i in range(3)]
    chosen = ProblemSet.of(problems, "here")
    assert (len(chosen), chosen[1], chosen[1:]) == (3, problems[1], tuple(problems[1:]))
    assert ProblemSet.of(chosen, "there") is chosen
    with pytest.raises(ValueError, match=r"here: 1 ids occur more than once, e\.g\. '0'"):
        ProblemSet.of([*problems, problems[0]], "here")


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
            st.integers(-(10**20), 10**20),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_kept_and_bad_rows_make_up_the_file_whatever_it_holds(tmp_path_factory, cells):
    rows = [good(0)]
    rows += [{"prompt": p, "answer": a if filled else None} for p, a, filled in cells]
    path = write_jsonl(tmp_path_factory.mktemp("any") / "a.jsonl", rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = load_problems(path, on_bad_row="skip")
    assert len(kept) + sum(kept.dropped.values()) == len(rows)
    expected = [r for r, (p, _, filled) in enumerate(cells, 1) if p.strip() and filled]
    assert list(kept.rows) == [0, *expected]
    assert [p.prompt for p in kept] == [rows[r]["prompt"] for r in kept.rows]


@needs_e3_data
@pytest.mark.parametrize(
    ("file", "size", "sources"),
    [
        ("e3_train_sample", 1000, {"math": 351, "omni_math": 336, "amc": 239, "aime": 74}),
        ("e3_valid", 512, dict.fromkeys(["aime", "amc", "math", "omni_math"], 128)),
    ],
)
def test_the_e3_parquet_files_load_with_two_repeated_prompts_each(file, size, sources):
    with pytest.warns(UserWarning, match="2 problems repeat the question"):
        problems = load_problems(E3_DATA / f"{file}.parquet", E3_COLUMNS)
    assert len(problems) == size
    assert [p.id for p in problems] == [f"{file}:{row}" for row in range(size)]
    assert {s: sum(p.source == s for p in problems) for s in sources} == sources
    assert all(p.prior is not None and p.prompt[0]["role"] == "user" for p in problems)


@needs_e3_data
def test_the_e3_jsonl_file_loads_without_a_mapping():
    problems = load_problems(E3_DATA / "e3_test_sample.jsonl")
    assert len(problems) == 150
    assert (problems[0].source, problems[0].answer) == ("aime", "204")
    assert problems[0].prompt.startswith("Every morning Aya goes")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("He sells 48/2 = 24.\n#### 24", "24"),
        ("So 60,000 + 12,000.\n#### 72,000", "72000"),
        ("#### 3 is a guess\n#### -1,234.5", "-1234.5"),
        ("#### (1,200)", "(1,200)"),
    ],
)
def test_gold_answers_behind_a_mark_stand_without_their_derivation(tmp_path, text, answer):
    path = write_jsonl(tmp_path / "gsm.jsonl", [{"question": "How many?", "answer": text}])
    columns = Columns(prompt="question")
    (problem,) = load_problems(path, columns, answer_after="####")
    assert problem.answer == answer


def test_rows_without_the_mark_of_the_gold_answer_are_named(tmp_path):
    rows = [good(1, answer=text) for text in ("1\n#### 2", "no mark", "####  ", "")]
    path = write_jsonl(tmp_path / "gsm.jsonl", rows)
    with pytest.raises(BadRowsError, match="no answer behind '####'; write the gold") as error:
        load_problems(path, answer_after="####")
    assert faults_of(error) == [
        (1, "no marked answer"),
        (2, "no marked answer"),
        (3, "no marked answer"),
    ]


def test_size_keeps_the_first_usable_problems_as_far_as_there_are_any(tmp_path):
    path = tmp_path / "p.json"
    rows = [("", "1"), ("a", "1"), ("a", "1"), ("b", "2"), ("c", "3")]
    path.write_text(json.dumps([{"prompt": p, "answer": a} for p, a in rows]))
    with pytest.warns(UserWarning, match="dropped 1 of 5 rows"):
        found = load_problems(path, on_bad_row="skip", repeats="drop", size=2)
    assert [problem.id for problem in found] == ["p:1", "p:3"]
    assert found.dropped == {"missing prompt": 1, "repeated question": 1, "beyond size": 1}
    path.write_text(path.read_text().replace('""', '"d"'))
    assert len(load_problems(path, repeats="drop", size=9)) == 4
    assert [problem.id for problem in load_problems(path, size=2)] == ["p:0", "p:1"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_keeps_nothing_is_refused(size):
    with pytest.raises(ValueError, match=f"^size is {size}: give the number of problems to keep"):
        load_problems("nowhere.json", size=size)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_reads_nothing_is_refused(tmp_path, limit):
    path = tmp_path / "p.json"
    path.write_text('[{"prompt": "1+1", "answer": "2"}]')
    with pytest.raises(ValueError, match=f"^limit is {limit}: give the number of rows to read"):
        load_problems(path, limit=limit)
