# ruff: noqa: E501 - templates are kept as their publishers break them
"""Shapes of published tokenizers: special tokens, post-processor and chat template.

The vocabularies are our own. Templates are those that the model families publish, without their
parts for images, and in a few cases without long fixed system prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.unit.trainer.data.records.tokenizers_by_shape import write_tokenizer

CHATML: Final = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
CHATML_SYSTEM: Final = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2: Final = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation"
    " roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' +"
    " system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
LLAMA_3: Final = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content ="
    " '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA_31: Final = (
    "{{- bos_token }}\n{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}"
    "{%- endif %}\n{%- if messages[0]['role'] == 'system' %}{%- set system_message ="
    " messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}"
    '{%- set system_message = "" %}{%- endif %}\n'
    '{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}'
    '{{- "Cutting Knowledge Date: December 2023\\n" }}{{- "Today Date: " + date_string + "\\n\\n" }}'
    '{{- system_message }}{{- "<|eot_id|>" }}\n{%- for message in messages %}'
    "{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] |"
    " trim + '<|eot_id|>' }}{%- elif 'tool_calls' in message %}"
    "{%- set tool_call = message.tool_calls[0].function %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}"
    "{{- '{\"name\": \"' + tool_call.name + '\", ' }}{{- '\"parameters\": ' }}"
    '{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}'
    '{%- elif message.role == "tool" or message.role == "ipython" %}'
    '{{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}'
    "{%- if message.content is mapping or message.content is iterable and not message.content is"
    " string %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}"
    '{{- "<|eot_id|>" }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}'
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
MISTRAL_1: Final = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 %"
    " 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/...') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
MISTRAL_2: Final = MISTRAL_1.replace(
    "message['content'] + eos_token + ' '", "' ' + message['content'] + eos_token"
)
MISTRAL_3: Final = (
    '{%- set user_messages = messages | selectattr("role", "equalto", "user") | list %}'
    "{{- bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    '{%- if tools is not none and (message == user_messages[-1]) %}{{- "[AVAILABLE_TOOLS] " + (tools | tojson) +'
    ' "[/AVAILABLE_TOOLS]" }}{%- endif %}{{- "[INST] " + message["content"] + "[/INST]" }}'
    '{%- elif message.tool_calls is defined and message.tool_calls is not none %}{{- "[TOOL_CALLS] ["'
    " }}{%- for tool_call in message.tool_calls %}{{- tool_call.function|tojson }}"
    '{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}{%- endfor %}'
    '{%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token}}'
    '{%- elif message["role"] == "tool" %}{{- "[TOOL_RESULTS] " + message.content +'
    ' "[/TOOL_RESULTS]" }}{%- endif %}{%- endfor %}'
)
TEKKEN: Final = MISTRAL_3.replace('"[INST] "', '"[INST]"').replace(
    '{{- " " + message', "{{- message"
)
QWEN_25: Final = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0]['role'] == 'system' %}"
    "{{- messages[0]['content'] }}{%- else %}{{- 'You are Qwen.' }}{%- endif %}"
    '{{- "\\n\\n# Tools\\n\\n<tools>" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}'
    '{%- endfor %}{{- "\\n</tools><|im_end|>\\n" }}{%- else %}'
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] +"
    " '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}{%- endif %}"
    '{%- endif %}{%- for message in messages %}{%- if (message.role == "user") or (message.role =='
    ' "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}'
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- elif message.role == \"assistant\" %}{{- '<|im_start|>' + message.role }}"
    "{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}"
    "{%- for tool_call in message.tool_calls %}{%- if tool_call.function is defined %}"
    '{%- set tool_call = tool_call.function %}{%- endif %}{{- \'\\n<tool_call>\\n{"name": "\' }}'
    '{{- tool_call.name }}{{- \'", "arguments": \' }}{{- tool_call.arguments | tojson }}'
    "{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    '{%- elif message.role == "tool" %}{%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role'
    " != \"tool\") %}{{- '<|im_start|>user' }}{%- endif %}{{- '\\n<tool_response>\\n' }}"
    "{{- message.content }}{{- '\\n</tool_response>' }}{%- if loop.last or (messages[loop.index0 +"
    " 1].role != \"tool\") %}{{- '<|im_end|>\\n' }}{%- endif %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
QWEN_3: Final = (
    "{%- set ns = namespace(last_query_index=messages|length - 1) %}{%- for message in"
    " messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    '{%- if ns.last_query_index == messages|length - 1 and message.role == "user" %}'
    "{%- set ns.last_query_index = index %}{%- break %}{%- endif %}{%- endfor %}"
    '{%- for message in messages %}{%- if message.role == "user" or message.role == "system" %}'
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    '{%- elif message.role == "assistant" %}{%- set content = message.content %}'
    "{%- set reasoning_content = '' %}{%- if message.reasoning_content is string %}"
    "{%- set reasoning_content = message.reasoning_content %}{%- elif '</think>' in content %}"
    "{%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1]"
    ".lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last_query_index %}{%- if loop.last or (not loop.last and"
    " reasoning_content) %}{{- '<|im_start|>' + message.role + '\\n<think>\\n' +"
    " reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}{%- else %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}{%- else %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}{{- '<|im_end|>\\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"
)
THINKING: Final = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\n<think>\n'")
GEMMA: Final = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not"
    " supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') !="
    " (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate"
    " user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == 'assistant') %}"
    "{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
PHI_3: Final = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' +"
    " message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' +"
    " message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n'"
    " + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI_4: Final = (
    "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>'"
    " + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}"
    "{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}"
    "{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' +"
    " message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
OLMO_2: Final = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}"
    "{% if not loop.last %}{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}"
    "{% else %}{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
TULU: Final = OLMO_2.removeprefix("{{ bos_token }}")
ZEPHYR: Final = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' +"
    " message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' +"
    " message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
DEEPSEEK_2: Final = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' +"
    " message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' +"
    " message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ message['content'] +"
    " '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
DEEPSEEK_3: Final = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(system_prompt='') %}{%- for message in messages %}"
    "{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}"
    "{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}{{'<|User|>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['tool_calls'] %}{{'<|Assistant|>'}}"
    "{%- for tool in message['tool_calls'] %}{{'<|call|>' + tool['function']['name'] + '\n```json\n'"
    " + tool['function']['arguments'] + '\n```'}}{%- endfor %}{{'<|end_of_sentence|>'}}"
    "{%- elif message['role'] == 'assistant' %}{{'<|Assistant|>' + message['content'] +"
    " '<|end_of_sentence|>'}}{%- endif %}{%- if message['role'] == 'tool' %}"
    "{{'<|result|>' + message['content']}}{%- endif %}{%- endfor %}"
    "{% if add_generation_prompt %}{{'<|Assistant|>'}}{% endif %}"
)
DEEPSEEK_R1: Final = DEEPSEEK_3.replace(
    "{{'<|Assistant|>' + message['content'] +",
    "{% set content = message['content'] %}{% if '</think>' in content %}{% set content ="
    " content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content +",
).replace("{{'<|Assistant|>'}}{% endif %}", "{{'<|Assistant|><think>\\n'}}{% endif %}")
GRANITE: Final = (
    "{%- for message in messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' +"
    " message['content'] + '<|end_of_text|>\\n' }}{%- if loop.last and add_generation_prompt %}"
    "{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}"
)
GPT_OSS: Final = (
    '{{- "<|start|>system<|message|>You are ChatGPT.<|end|>" }}{%- for message in messages -%}'
    "{%- if message.role == 'assistant' -%}{%- if message.thinking and loop.last %}"
    '{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}'
    "{%- endif %}{%- if loop.last and not add_generation_prompt %}"
    '{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}'
    '{%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}'
    "{%- endif %}{%- else %}{{- '<|start|>' + message.role + '<|message|>' + message.content +"
    " '<|end|>' }}{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}<|start|>assistant"
    "{%- endif -%}"
)
COMMAND_R: Final = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message['content'].strip() +"
    " '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'system' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + message['content'] + '<|END_OF_TURN_TOKEN|>' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  +"
    " message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
OPENCHAT: Final = (
    "{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': '"
    " + message['content'] + '<|end_of_turn|>'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ 'GPT4 Correct Assistant:' }}{% endif %}"
)
VICUNA: Final = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{{"
    " messages[0]['content'] + ' ' }}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% for message in loop_messages %}{% if message['role'] == 'user' %}{{ 'USER: ' +"
    " message['content'] + ' ' }}{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
SOLAR: Final = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{% if message['content']%}"
    "{{'### System:\n' + message['content']+'\n\n'}}{% endif %}{% elif message['role'] == 'user' %}"
    "{{'### User:\n' + message['content']+'\n\n'}}{% elif message['role'] == 'assistant' %}"
    "{{'### Assistant:\n'  + message['content'] + eos_token + '\n\n'}}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}{% endfor %}"
)
EXAONE: Final = (
    "{% for message in messages %}{{ '[|' + message['role'] + '|]' + message['content'] }}"
    "{% if message['role'] == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}"
)
NEMOTRON: Final = (
    "{{ '<extra_id_0>System\n' }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '\n<extra_id_1>User\n' + message['content'].strip() + '\n<extra_id_1>Assistant\n' }}"
    "{% else %}{{ message['content'].strip() + '</s>' }}{% endif %}{% endfor %}"
)
MARKED: Final = (
    "{%- for message in messages %}{%- if message.role == 'assistant' %}"
    "{{- '<|im_start|>assistant\\n' }}{%- generation %}{{- message.content + '<|im_end|>' }}"
    "{%- endgeneration %}{{- '\\n' }}{%- else %}{{- '<|im_start|>' + message.role + '\\n' +"
    " message.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tokenizer of a model family."""

    template: Any
    special: tuple[str, ...]
    """All of them; the first are the begin and the end token, unless `config` says otherwise."""
    begin: str | None = None
    """Written by the post-processor before a text."""
    end: str | None = None
    metaspace: bool = False
    stop: str | None = None
    """Text that ends an answer. None: the end token."""
    before: str = ""
    """Text between the words that ask and the answer that is learned."""
    after: str = ""
    """Text between an answer and the end."""
    past: str | None = None
    """Text that ends a past answer, where it is another and no stop token. None: the same."""
    tools: bool = False
    """The template writes tools and calls."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def closing(self) -> str:
        """What is learned after an answer's own words."""
        return self.after + (self.stop or self.config.get("eos_token", self.special[1]))

    def write(self, folder: Path) -> Path:
        """Write the tokenizer's files."""
        return write_tokenizer(
            folder,
            special=self.special,
            begin=self.begin,
            end=self.end,
            metaspace=self.metaspace,
            template=self.template,
            **self.config,
        )


def _shape(template: Any, *special: str, **more: Any) -> Shape:
    return Shape(template=template, special=special, **more)


_IM = ("<|im_start|>", "<|im_end|>")
_LLAMA_3 = (
    *("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"),
    *("<|start_header_id|>", "<|end_header_id|>"),
)
_QWEN = ("<|endoftext|>", *_IM)
_QWEN_CONFIG = {"bos_token": None, "eos_token": "<|im_end|>"}
_GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]")
_DEEPSEEK = ("<|begin_of_sentence|>", "<|end_of_sentence|>", "<|User|>", "<|Assistant|>")
_GPT_OSS = ("<|startoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|channel|>")
_HERMES = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": QWEN_25}]
SHAPES: Final[dict[str, Shape]] = {
    "llama 2": _shape(LLAMA_2, "<s>", "</s>", begin="<s>", metaspace=True, before=" ", after=" "),
    "llama 3": _shape(LLAMA_3, *_LLAMA_3, begin="<|begin_of_text|>"),
    "llama 3.1": _shape(LLAMA_31, *_LLAMA_3, begin="<|begin_of_text|>"),
    "llama 3.2": _shape(
        LLAMA_31.replace("26 Jul 2024", "01 Dec 2024"), *_LLAMA_3, begin="<|begin_of_text|>"
    ),
    "tinyllama": _shape(ZEPHYR, "<s>", "</s>", begin="<s>", metaspace=True, before="\n"),
    "mistral 0.1": _shape(MISTRAL_1, "<s>", "</s>", begin="<s>", metaspace=True),
    "mistral 0.2": _shape(MISTRAL_2, "<s>", "</s>", begin="<s>", metaspace=True, before=" "),
    "mistral v3": _shape(MISTRAL_3, *_MISTRAL, begin="<s>", metaspace=True, before=" ", tools=True),
    "mistral nemo": _shape(TEKKEN, *_MISTRAL, begin="<s>", tools=True),
    "zephyr": _shape(ZEPHYR, "<s>", "</s>", begin="<s>", metaspace=True, before="\n"),
    "qwen 1.5": _shape(CHATML_SYSTEM, *_QWEN, config=_QWEN_CONFIG),
    "qwen 2": _shape(CHATML_SYSTEM, *_QWEN, config=_QWEN_CONFIG),
    "qwen 2.5": _shape(QWEN_25, *_QWEN, config=_QWEN_CONFIG, tools=True),
    "qwen 2.5 base": _shape(
        QWEN_25,
        *_QWEN,
        config={"bos_token": None, "eos_token": "<|endoftext|>"},
        stop="<|im_end|>",
        tools=True,
    ),
    "qwen 3": _shape(QWEN_3, *_QWEN, config=_QWEN_CONFIG, before="<think>\n\n</think>\n\n"),
    "qwen 3 thinking": _shape(THINKING, *_QWEN, "<think>", "</think>", config=_QWEN_CONFIG),
    "qwq": _shape(THINKING, *_QWEN, config=_QWEN_CONFIG),
    "gemma": _shape(GEMMA, *_GEMMA, begin="<bos>", metaspace=True, stop="<end_of_turn>"),
    "gemma 2": _shape(GEMMA, *_GEMMA, begin="<bos>", metaspace=True, stop="<end_of_turn>"),
    "gemma 3": _shape(
        GEMMA,
        *_GEMMA,
        begin="<bos>",
        metaspace=True,
        config={"eos_token": "<end_of_turn>"},
    ),
    "phi 3": _shape(
        PHI_3,
        *("<s>", "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
        metaspace=True,
        stop="<|end|>",
    ),
    "phi 3.5": _shape(
        PHI_3, "<s>", "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>", stop="<|end|>"
    ),
    "phi 4": _shape(PHI_4, "<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|im_sep|>"),
    "smollm": _shape(CHATML, "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "smollm 2": _shape(CHATML_SYSTEM, "<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    "smollm 3": _shape(
        MARKED, "<|begin_of_text|>", "<|im_end|>", "<|im_start|>", config={"bos_token": None}
    ),
    "olmo 2": _shape(OLMO_2, "<|endoftext|>", "<|pad|>", config={"eos_token": "<|endoftext|>"}),
    "olmo": _shape(TULU, "<|padding|>", "<|endoftext|>", config={"bos_token": None}),
    "tulu 3": _shape(TULU, "<|begin_of_text|>", "<|end_of_text|>", begin="<|begin_of_text|>"),
    "deepseek v2": _shape(DEEPSEEK_2, *_DEEPSEEK, begin="<|begin_of_sentence|>", before=" "),
    "deepseek v3": _shape(DEEPSEEK_3, *_DEEPSEEK, begin="<|begin_of_sentence|>", tools=True),
    "deepseek r1": _shape(DEEPSEEK_R1, *_DEEPSEEK, begin="<|begin_of_sentence|>"),
    "hermes 2 pro": _shape(
        _HERMES, "<s>", "<|im_end|>", "<|im_start|>", begin="<s>", metaspace=True, tools=True
    ),
    "hermes 3": _shape(
        _HERMES,
        *("<|begin_of_text|>", "<|im_end|>", "<|im_start|>"),
        begin="<|begin_of_text|>",
        tools=True,
    ),
    "gpt-oss": _shape(
        GPT_OSS,
        *_GPT_OSS,
        before="<|channel|>final<|message|>",
        past="",
        config={"bos_token": None},
    ),
    "granite": _shape(
        GRANITE, "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", stop="<|end_of_text|>"
    ),
    "command r": _shape(
        COMMAND_R,
        *("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>"),
        *("<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
        begin="<BOS_TOKEN>",
    ),
    "openchat": _shape(OPENCHAT, "<s>", "<|end_of_turn|>", begin="<s>", metaspace=True, before=" "),
    "vicuna": _shape(VICUNA, "<s>", "</s>", begin="<s>", metaspace=True, before=" "),
    "solar": _shape(SOLAR, "<s>", "</s>", begin="<s>", metaspace=True),
    "exaone": _shape(EXAONE, "[BOS]", "[|endofturn|]", "[|user|]", "[|assistant|]"),
    "nemotron": _shape(NEMOTRON, "<s>", "</s>", "<extra_id_0>", "<extra_id_1>"),
    "yi": _shape(CHATML, "<|startoftext|>", "<|im_end|>", "<|im_start|>", metaspace=True),
    "internlm 2": _shape(
        "{{ bos_token }}" + CHATML,
        "<s>",
        "</s>",
        *_IM,
        begin="<s>",
        metaspace=True,
        stop="<|im_end|>",
    ),
    "an end of texts": _shape(
        CHATML, "<s>", "</s>", *_IM, begin="<s>", end="</s>", stop="<|im_end|>"
    ),
    "bert": _shape(CHATML, "[CLS]", "[SEP]", *_IM, begin="[CLS]", end="[SEP]", stop="<|im_end|>"),
}
"""By the family; 46 of them."""
