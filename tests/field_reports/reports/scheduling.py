"""Many requests at once."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-24": report(
        "A client leaves and its request goes on",
        "ggml-org/llama.cpp#24496 peonist-ai/halogen-flash-server#58 JustVugg/colibri#908"
        " JustVugg/colibri#956",
        """
        api/test_batching.py::test_when_a_client_leaves_the_next_starts_within_a_step
        api/test_batching.py::test_a_client_that_leaves_the_line_is_cancelled_but_not_stopped
        api/test_streams.py::test_a_client_that_leaves_stops_its_generation
        e2e/test_abandoned.py::test_the_next_request_runs_at_once
        e2e/test_abandoned.py::test_who_leaves_the_line_never_runs
        """,
    ),
    "FR-25": report(
        "Long prompts stop the streams of others",
        "ggml-org/llama.cpp#29175 kekzl/imp#1643 FlashML-org/FreeToken#483",
        """
        engine/test_engine_steps.py::test_long_prompts_do_not_stall_a_running_stream
        engine/test_pace.py::test_long_prompt_among_four_streams_stretches_no_step_beyond_the_bound
        engine/test_pace.py::test_a_prompt_is_left_out_of_at_most_one_step_in_a_row_and_few_in_all
        e2e/test_batching.py::test_a_stream_advances_in_every_step_while_long_prompts_come
        field_reports/test_fr_d_scheduling.py::test_a_stream_goes_on_in_every_step_of_long_prompts
        """,
    ),
    "FR-26": report(
        "A full server looks like a broken one",
        "pytorch/serve#3342 pytorch/serve#2764 tenstorrent/tt-inference-server#863 vllm-project/vllm#41250"
        " openai/openai-python#3803",
        """
        api/test_batching.py::test_a_full_server_refuses_at_once_and_is_not_at_fault
        api/test_streams.py::test_overload_is_429_at_once
        e2e/test_batching.py::test_the_ninth_request_is_refused_and_told_when_to_come_back
        """,
    ),
    "FR-27": report(
        "An answer holds what only another request said",
        "ml-explore/mlx-lm#965 ggml-org/llama.cpp#6681",
        """
        e2e/test_under_load.py::test_no_answer_holds_anothers_code_word
        engine/test_engine_steps.py::test_neighbours_and_chunking_change_nothing
        field_reports/test_fr_d_scheduling.py::test_sixteen_answers_are_those_of_one_at_a_time
        """,
    ),
}
