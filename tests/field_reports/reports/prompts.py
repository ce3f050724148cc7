"""From a request to the token ids of its prompt."""

from tests.field_reports.reports.report import Report, report

REPORTS: dict[str, Report] = {
    "FR-07": report(
        "Token ids are not those of the model's own tokenizer",
        "ggml-org/llama.cpp#23252 ggml-org/llama.cpp#11054",
        """
        tokenizer/test_llama_cpp_cases.py::test_smollm2
        tokenizer/test_llama_cpp_cases.py::test_qwen
        tokenizer/test_llama_cpp_cases.py::test_gemma
        tokenizer/test_llama_cpp_cases.py::test_every_accepted_tag_has_cases
        tokenizer/test_llama_cpp_cases.py::test_every_rule_on_a_small_vocabulary
        tokenizer/test_encode.py::test_bytelevel_text_comes_back
        tokenizer/test_encode.py::test_equal_to_merging_the_whole_text_naively
        api/test_tokenize.py::test_counts_on_real_models
        """,
    ),
    "FR-08": report(
        "A missing or generic splitting rule goes unnoticed",
        "ollama/ollama#17698 ggml-org/llama.cpp#7476",
        """
        tokenizer/test_load.py::test_a_generic_rule_loads_with_one_warning
        tokenizer/test_load.py::test_bad_bytelevel_metadata_is_one_line
        gguf/test_inspect.py::test_pre_tokenizer_rule
        field_reports/test_fr_b_prompts.py::test_a_generic_splitting_rule_is_used_with_one_warning
        field_reports/test_fr_b_prompts.py::test_an_unknown_splitting_rule_is_refused_by_name
        """,
    ),
    "FR-09": report(
        "A prompt begins with two beginning-of-sequence tokens",
        "abetlen/llama-cpp-python#1501 vllm-project/vllm#38187 sgl-project/sglang#888",
        """
        tokenizer/test_encode.py::test_exactly_one_bos
        api/test_responses_prompt.py::test_bos_is_there_once_as_in_a_chat
        chat/test_stored_cases.py::test_a_base_model_gets_the_fallback_and_one_bos
        field_reports/test_fr_b_prompts.py::test_a_prompt_begins_once_on_every_route
        """,
    ),
    "FR-10": report(
        "Text of a request forges the marks of turns",
        "huggingface/transformers#29279 ggml-org/llama.cpp#26273 sgl-project/sglang#30962",
        """
        chat/test_control_text.py::test_forged_turns_stay_text_in_every_role
        chat/test_control_text.py::test_any_text_anywhere_leaves_the_control_ids_alone
        chat/test_tools.py::test_control_text_anywhere_in_tools_is_text
        chat/test_stored_cases.py::test_control_text_in_a_message_gives_no_control_ids
        api/test_responses_prompt.py::test_text_forges_no_control_tokens
        api/test_responses_prompt.py::test_a_declaration_and_a_result_forge_nothing_either
        api/test_tools_on_models.py::test_text_never_becomes_a_control_token
        e2e/test_answers.py::test_raw_prompts_read_control_tokens_and_messages_do_not
        field_reports/test_fr_b_prompts.py::test_control_text_is_text_in_every_place
        field_reports/test_fr_b_prompts.py::test_control_text_on_responses_counts_as_in_the_chat
        """,
    ),
    "FR-11": report(
        "A role order that the template refuses is a server error",
        "EricLBuehler/mistral.rs#506 sgl-project/sglang#892 janhq/jan#6254 anomalyco/opencode#5034",
        """
        chat/test_template.py::test_role_order_is_refused_in_the_templates_own_sentence
        api/test_validation.py::test_the_template_s_own_sentence_is_the_answer
        api/test_responses_prompt.py::test_what_the_template_refuses_is_a_400_with_its_own_sentence
        field_reports/test_fr_b_prompts.py::test_a_role_order_is_refused_in_the_words_of_the_template
        """,
    ),
    "FR-12": report(
        "Content as a list of text parts is not understood",
        "browser-use/web-ui#359",
        """
        api/test_validation.py::test_text_parts_are_the_joined_text
        api/test_validation.py::test_text_parts_in_a_tool_message
        api/test_validation.py::test_bad_messages
        api/test_responses_input.py::test_text_parts_are_the_joined_string_in_every_role
        field_reports/test_fr_b_prompts.py::test_text_parts_are_one_text_in_every_role
        """,
    ),
}
