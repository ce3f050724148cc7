"""Chance, log-probabilities, limits and biases."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-34": report(
        "Greedy answers depend on the load",
        "ggml-org/llama.cpp#7052 ggml-org/llama.cpp#6950 vllm-project/vllm#23138",
        """
        e2e/test_determinism.py::test_alone_and_among_others
        e2e/test_determinism.py::test_other_kernels_threads_and_storage
        e2e/test_under_load.py::test_one_prompt_eight_times
        engine/test_native_logprobs.py::test_they_have_the_same_bits_in_any_company
        field_reports/test_fr_f_sampling.py::test_log_probabilities_are_the_same_bits_in_any_company
        """,
    ),
    "FR-35": report(
        "A seed does nothing, or its absence does",
        "ggml-org/llama.cpp#8593 ggml-org/llama.cpp#6955 tenstorrent/vllm#225",
        """
        e2e/test_determinism.py::test_seeds
        e2e/test_under_load.py::test_a_seed_is_kept_under_load
        sampling/test_sampler.py::test_a_seed_fixes_the_tokens
        api/test_validation.py::test_the_whole_range_of_seeds_reaches_the_sampler
        api/test_validation.py::test_a_bad_value_is_a_400_that_names_the_field
        field_reports/test_fr_f_sampling.py::test_a_seed_is_used_and_its_absence_too
        """,
    ),
    "FR-36": report(
        "Log-probabilities are something else than their name says",
        "vllm-project/vllm#9453 ollama/ollama#16196 standardcompletions/rfcs#11 ggml-org/llama.cpp#10783"
        " ggml-org/llama.cpp#7197",
        """
        sampling/test_masked.py::test_logprobs_are_the_log_softmax
        sampling/test_masked.py::test_the_probabilities_of_a_row_sum_to_one
        sampling/test_masked.py::test_logprobs_are_those_before_anything_changes_the_logits
        api/test_real_depth.py::test_log_probabilities_are_the_model_s_own
        engine/test_real_model.py::test_log_probabilities_are_the_log_softmax_of_the_logits
        field_reports/test_fr_f_sampling.py::test_log_probabilities_describe_the_model_and_not_the_sampling
        field_reports/test_fr_f_sampling.py::test_log_probabilities_under_a_grammar_are_the_model_s_own
        field_reports/test_fr_f_sampling.py::test_the_likeliest_are_really_the_likeliest
        """,
    ),
    "FR-37": report(
        "A very small limit is exceeded",
        "ggml-org/llama.cpp#4047 ggml-org/llama.cpp#4790",
        """
        api/test_text_boundaries.py::test_small_limits_hold_inside_a_character
        api/test_responses.py::test_a_small_budget_is_kept
        api/test_echo.py::test_a_text_is_scored_without_a_token_of_its_own
        e2e/test_answers.py::test_small_limits_inside_a_character
        field_reports/test_fr_f_sampling.py::test_a_small_budget_is_never_exceeded
        field_reports/test_fr_f_sampling.py::test_no_tokens_are_a_score_or_a_refusal
        """,
    ),
    "FR-38": report(
        "A limit that nobody set ends the answer, or nothing does",
        "JustVugg/colibri#382 ggml-org/llama.cpp#9368 ggml-org/llama.cpp#6638",
        """
        api/test_validation.py::test_the_default_and_the_hard_limit
        api/test_responses.py::test_the_server_s_limits_are_the_only_ones
        api/test_batching.py::test_limits_hold_when_batching
        """,
    ),
    "FR-39": report(
        "A bias on tokens does nothing",
        "ggml-org/llama.cpp#13605 ggml-org/llama.cpp#19699",
        """
        api/test_real_depth.py::test_a_bias_bans_and_forces
        api/test_real_depth.py::test_a_grammar_wins_over_a_bias
        sampling/test_sampler.py::test_banned_tokens_never_come_and_a_forced_one_does
        e2e/test_answers.py::test_logit_bias_bans_and_forces
        field_reports/test_fr_f_sampling.py::test_a_bias_bans_and_forces_everywhere
        """,
    ),
}
