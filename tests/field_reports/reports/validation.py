"""What a request may say, and what is refused."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-40": report(
        "Too long a prompt is cut without a word",
        "ollama/ollama#3839 ollama/ollama#17944 esengine/DeepSeek-Reasonix#10245 ggml-org/llama.cpp#17284",
        """
        api/test_validation.py::test_prompt_plus_budget_must_fit
        api/test_responses.py::test_what_does_not_fit_into_the_context_is_refused_with_the_numbers
        e2e/test_answers.py::test_a_context_that_is_full
        field_reports/test_fr_g_validation.py::test_too_long_a_prompt_is_refused_before_any_work
        """,
    ),
    "FR-41": report(
        "Absurd numbers hold up the server",
        "ggml-org/llama.cpp#19367",
        """
        api/test_validation.py::test_a_bad_value_is_a_400_that_names_the_field
        api/test_validation.py::test_numbers_that_json_does_not_have
        api/test_streams.py::test_refusals_do_not_disturb_a_stream
        field_reports/test_fr_g_validation.py::test_no_wrong_value_disturbs_a_stream_or_the_log
        """,
    ),
    "FR-42": report(
        "An id outside the vocabulary ends the engine",
        "vllm-project/vllm#16529 vllm-project/vllm#5963 ggml-org/llama.cpp#12178",
        """
        api/test_validation.py::test_bad_prompts
        api/test_streams.py::test_refusals_do_not_disturb_a_stream
        sampling/test_sampler.py::test_tokens_outside_the_vocabulary_are_refused
        field_reports/test_fr_g_validation.py::test_no_wrong_value_disturbs_a_stream_or_the_log
        """,
    ),
    "FR-43": report(
        "Known fields are accepted and have no effect",
        "dtzp555-max/ocp#470 lvyufeng/PocketLLM#244",
        """
        api/test_fields.py::test_the_table_has_every_field_of_the_client_and_of_the_body
        api/test_fields.py::test_a_value_that_is_not_honoured_is_refused_by_name
        api/test_responses.py::test_the_table_has_every_field_of_the_client_and_of_the_body
        api/test_responses.py::test_a_value_that_is_not_honoured_is_refused_by_name
        api/test_real_depth.py::test_every_honoured_field_has_a_case
        api/test_real_depth.py::test_every_honoured_field_has_an_effect
        clients/test_field_table.py::test_a_field_that_the_client_adds_is_noticed
        field_reports/test_fr_g_validation.py::test_every_honoured_field_of_responses_has_a_case
        field_reports/test_fr_g_validation.py::test_every_honoured_field_of_responses_has_an_effect
        """,
    ),
    "FR-44": report(
        "Harmless extras of real clients are refused",
        "vllm-project/vllm#10463 OpenCoworkAI/open-cowork#232 voideditor/void#128",
        """
        api/test_fields.py::test_harmless_extras_change_nothing
        api/test_responses.py::test_harmless_extras_change_nothing
        api/test_validation.py::test_bad_messages
        field_reports/test_fr_g_validation.py::test_harmless_extras_of_real_clients_change_nothing
        """,
    ),
}
