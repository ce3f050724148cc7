"""Templates of our own, each with the structure of a well-known family, and a tokenizer to match."""

import re
from dataclasses import dataclass

GEMMA = """\
{{ bos_token }}
{%- if messages[0].role == "system" %}
  {%- set opening = messages[0].content + "\\n\\n" %}
  {%- set turns = messages[1:] %}
{%- else %}
  {%- set opening = "" %}
  {%- set turns = messages %}
{%- endif %}
{%- for turn in turns %}
  {%- if (turn.role == "user") != (loop.index0 % 2 == 0) %}
    {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
  {%- endif %}
  {{- "<start_of_turn>" ~ ("model" if turn.role == "assistant" else turn.role) ~ "\\n" }}
  {{- opening if loop.first }}{{ turn.content | trim }}<end_of_turn>{{ "\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<start_of_turn>model\\n" }}{% endif %}
"""

CHATML_WITH_TOOLS = """\
{{ bos_token }}
{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages -%}
<|im_start|>{{ message.role }}{% if message.name is defined %} {{ message.name }}{% endif +%}
{{ message.content | trim }}
{%- for call in message.tool_calls %}
[{{ call.function.name }} {{ call.function.arguments | tojson }}]
{%- endfor -%}
<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

BUILT_FROM_ROLES = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
"""Control tokens that the template puts together around the role."""

HERMES_TOOLS = """\
{%- if tools %}<|im_start|>system
Call a function by <tool_call>{"name": ..., "arguments": {...}}</tool_call>. Functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}{% endif %}"""

LLAMA3_TOOLS = """\
{{- bos_token }}
{%- if tools %}{{ "Answer with {\\"name\\": function name, \\"parameters\\": arguments}.\\n" }}
{%- for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.tool_calls %}
{{- '{"name": "' ~ m.tool_calls[0].function.name ~ '", "parameters": ' }}
{{- m.tool_calls[0].function.arguments | tojson }}{{ "}" }}
{%- else %}{{ m.content }}{% endif %}<|end|>
{%- endfor %}"""

MISTRAL_TOOLS = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == "user" %}
{%- if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST]{{ m.content }}[/INST]
{%- elif m.tool_calls %}[TOOL_CALLS][
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("Ids of calls have nine characters") }}{% endif %}
{{- {"name": call.function.name, "arguments": call.function.arguments, "id": call.id} | tojson }}
{{- ", " if not loop.last }}
{%- endfor %}]
{%- elif m.role == "tool" %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception("Ids of calls have nine characters") }}{% endif %}
{{- "[TOOL_RESULTS]" ~ m.tool_call_id ~ " " ~ m.content }}
{%- elif m.role == "assistant" %}{{ m.content }}
{%- else %}{{ raise_exception("Only user, assistant and tool roles are supported") }}
{%- endif %}
{%- endfor %}"""

TEXT_ARGUMENTS = """\
{%- for tool in tools or [] %}{{ tool.function.name }}{% endfor %}
{%- for m in messages %}{{ m.role ~ ": " ~ m.content }}
{%- for call in m.tool_calls %}
{{- " " + call.function.name + "(" + call.function.arguments + ")" }}
{%- endfor %}
{{- "<|end|>" }}
{%- endfor %}"""
"""A template that puts the arguments of calls into the prompt as they are: they must be text."""

PYTHONIC_TOOLS = """\
{%- if tools %}Answer with [name(first=1, second="x")]. {{ tools | tojson }}{% endif %}
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}
{%- for call in m.tool_calls %}
{{- call.function.name }}({{ call.function.arguments | items | list }})
{%- endfor %}<|end|>
{%- endfor %}"""


@dataclass(frozen=True)
class Marked:
    """A tokenizer that knows only markers: their ids are 1, 2, 3 … in order."""

    markers: tuple[str, ...] = (
        *("<s>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
        *("<|user|>", "<|system|>", "<|assistant|>", "<|end|>"),
    )
    bos_id: int | None = 1

    def token_text(self, token: int) -> str:
        """The marker of an id."""
        return self.markers[token - 1]

    def split_special(self, text: str) -> list[str | int]:
        """Markers become ids."""
        pieces = re.split(f"({'|'.join(map(re.escape, self.markers))})", text)
        return [
            self.markers.index(piece) + 1 if piece in self.markers else piece for piece in pieces if piece
        ]

    def joined(self, segments: list[str | int]) -> str:
        """The prompt as one text."""
        return "".join(piece if isinstance(piece, str) else self.token_text(piece) for piece in segments)
