"""What is kept of one request for the next, and the memory it takes."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-28": report(
        "A prefix from the cache changes the answer",
        "tenstorrent/vllm#415 vllm-project/vllm#7845 vllm-project/vllm#54490 ovg-project/kvcached#446",
        """
        e2e/test_prefix_cache.py::test_the_same_prompt_four_times
        e2e/test_prefix_cache.py::test_sampled_and_penalised_answers_are_those_of_the_cold_run
        engine/test_logprobs.py::test_they_are_the_same_shared_and_on_a_prefix_hit
        engine/test_native.py::test_cached_answer_is_the_uncached_one
        field_reports/test_fr_e_cache.py::test_the_same_prompt_four_times
        field_reports/test_fr_e_cache.py::test_the_same_chat_four_times
        """,
    ),
    "FR-29": report(
        "After a reuse the question before is answered",
        "nicedreamzapp/claude-code-local#46",
        """
        e2e/test_prefix_cache.py::test_the_answer_is_to_the_new_question
        engine/test_prefix_reuse.py::test_prompt_that_differs_is_reused_up_to_the_difference
        kv/test_prefix.py::test_an_edited_prompt_reuses_nothing_from_the_first_changed_token_on
        field_reports/test_fr_e_cache.py::test_the_new_question_is_answered
        """,
    ),
    "FR-30": report(
        "Reuse stops working and nobody is told",
        "ggml-org/llama.cpp#14113",
        """
        e2e/test_prefix_cache.py::test_a_chat_of_five_turns_evaluates_only_new_text
        engine/test_prefix_reuse.py::test_every_turn_of_a_chat_reuses_the_one_before
        api/test_prefix.py::test_every_turn_of_a_chat_continues_the_one_before
        api/test_prefix.py::test_without_the_option_a_key_changes_nothing
        """,
    ),
    "FR-31": report(
        "The limit of the cache's memory is none",
        "ggml-org/llama.cpp#22629 ggml-org/llama.cpp#20509 ollama/ollama#18264",
        """
        robustness/test_cache_limits.py::test_two_hundred_prompts_and_one_that_is_too_large
        kv/test_prefix.py::test_room_is_made_before_references_are_taken
        kv/test_prefix.py::test_an_oversized_snapshot_is_not_kept_and_pushes_nothing_out
        api/test_prefix.py::test_the_limits_hold_at_every_moment
        field_reports/test_fr_e_cache.py::test_the_limits_of_the_cache_and_the_memory_that_was_told_hold
        """,
    ),
    "FR-32": report(
        "Memory or speed goes with the number of requests",
        "ollama/ollama#18106 ggml-org/llama.cpp#22360",
        """
        e2e/test_soak.py::test_a_mix_of_requests_leaves_nothing_behind
        engine/test_engine_steps.py::test_cancel_in_every_stage_frees_everything_within_one_step
        api/test_structured.py::test_the_cache_keeps_to_its_limits_and_drops_the_least_recently_used
        robustness/test_clients.py::test_ten_thousand_connections_come_and_go
        """,
    ),
    "FR-33": report(
        "A template that rewrites the history makes reuse small",
        "QwenLM/Qwen3.8#48 QwenLM/Qwen3.8#131 nibor1896/Crow#60",
        """
        e2e/test_prefix_cache.py::test_a_template_that_rewrites_the_history_is_told_truly
        e2e/test_prefix_cache.py::test_a_chat_of_five_turns_evaluates_only_new_text
        chat/test_tools.py::test_replaying_a_streamed_call_gives_the_ids_that_the_model_wrote
        api/test_reasoning.py::test_reasoning_can_be_told_again
        """,
    ),
}
