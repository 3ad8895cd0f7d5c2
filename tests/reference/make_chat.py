"""Make tests/data/chat: published chat templates, and conversations that transformers has rendered with them.

    python tests/reference/make_chat.py        (transformers and jinja2; only to make the data again)

templates.json       {name: {"program", "bos", "eos"}}
conversations.json   [{"messages", "answers"}], where answers is add_generation_prompt
rendered.json        {name: [text or null]}, one for each conversation from the first on, until 50 are texts. null: the
                     template refuses the conversation, or leaves a message of it out.

tools.json and rendered_tools.json are the same with functions, calls and results, for templates that list functions;
thoughts.json and rendered_thoughts.json also with reasoning in the answers; array_tools.json and
rendered_array_tools.json with short ids of calls. tool_templates.json has templates for conversations with functions alone,
signature_tools.json and rendered_signature_tools.json are for these.

The date is 26 Jul 2024, as in the templates.
"""
import json
import pathlib
import random

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "chat"
ENOUGH = 50

ALTERNATE = "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
CHATML = "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
FOR = "{% for message in messages %}"


def chatml_with(system):
    return FOR + "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n" + system + "<|im_end|>\\n' }}{% endif %}" + CHATML


def mistral(end):
    return ("{{ bos_token }}" + FOR + ALTERNATE + "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ "
            + end + "}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}")


def vicuna(system):
    return ("{%- for message in messages %}{%- if message['role'] == 'system' -%}{{-" + system + " -}}{%- else -%}{%- if message['role'] == 'user' -%}{{-'USER: ' + message['content'] + '\\n'-}}"
            "{%- else -%}{{-'ASSISTANT: ' + message['content'] + '</s>\\n' -}}{%- endif -%}{%- endif -%}{%- endfor -%}{%- if add_generation_prompt -%}{{-'ASSISTANT:'-}}{%- endif -%}")


LLAMA_3 = ("{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}"
           "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}")
LLAMA_3_ANSWER = "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
PHI_3_PAIRS = (FOR + "{% if (message['role'] == 'user') %}{{'<|user|>' + '\\n' + message['content'] + '<|end|>' + '\\n' + '<|assistant|>' + '\\n'}}"
               "{% elif (message['role'] == 'assistant') %}{{message['content'] + '<|end|>' + '\\n'}}{% endif %}{% endfor %}")

LLAMA_2 = ("{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
           "{% for message in loop_messages %}" + ALTERNATE
           + "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
           "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
MISTRAL_V1 = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, with the exception of an initial optional system message!') }}
    {%- endif %}
{%- endfor %}
"""
MISTRAL_V3 = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""
ZEPHYR = ("{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\\n' + message['content'] + eos_token }}\n"
          "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}")
GEMMA = ("{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + FOR + ALTERNATE
         + "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
         "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}")
PHI_3_SMALL = "{{ bos_token }}" + FOR + "{{'<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
PHI_3_5 = (FOR + "{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}"
           "{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}")
DEEPSEEK_2 = ("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}" + FOR
              + "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\\n\\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
              "{% elif message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}")
OPENCHAT = "{{ bos_token }}" + FOR + "{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + '<|end_of_turn|>'}}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}"
MONARCH = FOR + "{{bos_token + message['role'] + '\\n' + message['content'] + eos_token + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant\\n' }}{% endif %}"
GRANITE_3 = """{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>\\n' }}
    {%- for tool in tools %}
    {{- tool | tojson(indent=4) }}
    {%- if not loop.last %}
        {{- '\\n\\n' }}
    {%- endif %}
    {%- endfor %}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
    {{- '<|start_of_role|>system<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- elif message['role'] == 'user' %}
    {{- '<|start_of_role|>user<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- elif message['role'] == 'assistant' %}
    {{- '<|start_of_role|>assistant<|end_of_role|>'  + message['content'] + '<|end_of_text|>\\n' }}
    {%- elif message['role'] == 'assistant_tool_call' %}
    {{- '<|start_of_role|>assistant<|end_of_role|><|tool_call|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- elif message['role'] == 'tool_response' %}
    {{- '<|start_of_role|>tool_response<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- endif %}
    {%- if loop.last and add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""
QWEN_2_5 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'SYSTEM' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\\"name\\\": <function-name>, \\\"arguments\\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nSYSTEM<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA_3_1 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions. To call a function, please respond with JSON for a function call." }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Custom tools are passed in a user message with some extra guidance #}
{%- if tools_in_user_message and not tools is none %}
    {#- Extract the first user message so we can plug it in here #}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("Cannot put tools in the first user message when there's no first user message!") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Given the following functions, please respond with a JSON for a function call " }}
    {{- "with its proper arguments that best answers the given prompt.\\n\\n" }}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {{- "Do not use variables.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {#- This means we're in ipython mode #}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

HERMES = """{%- macro json_to_python_type(json_spec) %}
{%- set basic_type_map = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool"
} %}

{%- if basic_type_map[json_spec.type] is defined %}
    {{- basic_type_map[json_spec.type] }}
{%- elif json_spec.type == "array" %}
    {{- "list[" +  json_to_python_type(json_spec|items) + "]"}}
{%- elif json_spec.type == "object" %}
    {%- if json_spec.additionalProperties is defined %}
        {{- "dict[str, " + json_to_python_type(json_spec.additionalProperties) + ']'}}
    {%- else %}
        {{- "dict" }}
    {%- endif %}
{%- elif json_spec.type is iterable %}
    {{- "Union[" }}
    {%- for t in json_spec.type %}
      {{- json_to_python_type({"type": t}) }}
      {%- if not loop.last %}
        {{- "," }}
    {%- endif %}
    {%- endfor %}
    {{- "]" }}
{%- else %}
    {{- "Any" }}
{%- endif %}
{%- endmacro %}


{{- bos_token }}
{{- '<|im_start|>system\\n' }}
{{- "You are a function calling AI model. You are provided with function signatures within <tools></tools> XML tags. You may call one or more functions to assist with the user query. Don't make assumptions about what values to plug into functions. Here are the available tools: <tools> " }}
{%- for tool in tools %}
    {%- if tool.function is defined %}
        {%- set tool = tool.function %}
    {%- endif %}
    {{- '{"type": "function", "function": ' }}
    {{- '{"name": "' + tool.name + '", ' }}
    {{- '"description": "' + tool.name + '(' }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {{- param_name + ": " + json_to_python_type(param_fields) }}
        {%- if not loop.last %}
            {{- ", " }}
        {%- endif %}
    {%- endfor %}
    {{- ")" }}
    {%- if tool.return is defined %}
        {{- " -> " + json_to_python_type(tool.return) }}
    {%- endif %}
    {{- " - " + tool.description + "\\n\\n" }}
    {%- for param_name, param_fields in tool.parameters.properties|items %}
        {%- if loop.first %}
            {{- "    Args:\\n" }}
        {%- endif %}
        {{- "        " + param_name + "(" + json_to_python_type(param_fields) + "): " + param_fields.description|trim }}
    {%- endfor %}
    {%- if tool.return is defined and tool.return.description is defined %}
        {{- "\\n    Returns:\\n        " + tool.return.description }}
    {%- endif %}
    {{- '"' }}
    {{- ', "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}
        {{- "{}" }}
    {%- else %}
        {{- tool.parameters|tojson }}
    {%- endif %}
    {{- "}" }}
    {%- if not loop.last %}
        {{- "\\n" }}
    {%- endif %}
{%- endfor %}
{{- " </tools>" }}
{{- 'Use the following pydantic model json schema for each tool call you will make: {"properties": {"name": {"title": "Name", "type": "string"}, "arguments": {"title": "Arguments", "type": "object"}}, "required": ["name", "arguments"], "title": "FunctionCall", "type": "object"}}\\n' }}
{{- "For each function call return a json object with function name and arguments within <tool_call></tool_call> XML tags as follows:\\n" }}
{{- "<tool_call>\\n" }}
{{- '{"name": <function-name>, "arguments": <args-dict>}\\n' }}
{{- '</tool_call><|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
    {%- for tool_call in message.tool_calls %}
       {{- '\\n<tool_call>\\n' }}           {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '{' }}
            {{- '"name": "' }}
            {{- tool_call.name }}
            {{- '"' }}
            {{- ', '}}
            {%- if tool_call.arguments is defined %}
                {{- '"arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments|tojson }}
                {%- endif %}
            {%- endif %}
             {{- '}' }}
            {{- '\\n</tool_call>' }}
    {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}
            {{- '<|im_start|>tool\\n' }}
        {%- endif %}
        {{- '<tool_response>\\n' }}
        {{- message.content }}
        {%- if not loop.last %}
            {{- '\\n</tool_response>\\n' }}
        {%- else %}
            {{- '\\n</tool_response>' }}
        {%- endif %}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>' }}
        {%- elif loop.last %}
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
LLAMA_3_2 = LLAMA_3_1
for old, new in (
        ('    {%- set date_string = "26 Jul 2024" %}\n',
         '    {%- if strftime_now is defined %}\n        {%- set date_string = strftime_now("%d %b %Y") %}\n    {%- else %}\n        {%- set date_string = "26 Jul 2024" %}\n    {%- endif %}\n'),
        ("System message + builtin tools", "System message"),
        ("{%- if builtin_tools is defined or tools is not none %}", "{%- if tools is not none %}"),
        ('{%- if builtin_tools is defined %}\n    {{- "Tools: " + builtin_tools | reject(\'equalto\', \'code_interpreter\') | join(", ") + "\\n\\n"}}\n{%- endif %}\n', ""),
        (LLAMA_3_1[LLAMA_3_1.index("        {%- if builtin_tools is defined and"):LLAMA_3_1.index("            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n            {{- '{")], ""),
        (LLAMA_3_1[LLAMA_3_1.index("        {%- endif %}\n        {%- if builtin_tools is defined %}\n            {#-"):LLAMA_3_1.index('            {{- "<|eot_id|>" }}\n        {%- endif %}\n    {%- elif')], ""),
        ('            {{- "<|eot_id|>" }}\n        {%- endif %}\n    {%- elif', '            {{- "<|eot_id|>" }}\n    {%- elif')):
    assert LLAMA_3_2.count(old) == 1, old
    LLAMA_3_2 = LLAMA_3_2.replace(old, new)
QWEN_3 = QWEN_2_5[:QWEN_2_5.index("    {%- if messages[0]['role']")] + """    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
""" + QWEN_2_5[QWEN_2_5.index('    {{- "\\n\\n# Tools'):QWEN_2_5.index("    {%- else %}\n        {{- '<|im_start|>system\\nSYSTEM")].replace('"\\n\\n# Tools', '"# Tools').replace("messages[0]['role']", "messages[0].role").replace("messages[0]['content']", "messages[0].content") + """    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

QWEN_3_FIRST = QWEN_3  # the first edition has the same text, written otherwise
for old, new in (
        ("message.content is string and not(", "not("),
        (QWEN_3[QWEN_3.index("    {%- if message.content is string %}"):QWEN_3.index('    {%- if (message.role == "user")')], ""),
        ("message.role + '\\n' + content + '<|im_end|>'", "message.role + '\\n' + message.content + '<|im_end|>'"),
        ("        {%- set reasoning_content = '' %}\n", "        {%- set content = message.content %}\n        {%- set reasoning_content = '' %}\n"),
        ("message.reasoning_content is string", "message.reasoning_content is defined and message.reasoning_content is not none"),
        (QWEN_3[QWEN_3.index("            {%- if '</think>' in content"):QWEN_3.index("            {%- endif %}\n        {%- endif %}\n        {%- if loop.index0 >")],
         "            {%- if '</think>' in message.content %}\n                {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}\n"
         "                {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"),
        ("        {{- content }}\n", "        {{- message.content }}\n")):
    assert QWEN_3_FIRST.count(old) == 1, old
    QWEN_3_FIRST = QWEN_3_FIRST.replace(old, new)

S = ("<s>", "</s>")
TEMPLATES = {
    "chatml": (FOR + CHATML, *S),
    "chatml begin": ("{{bos_token}}" + FOR + CHATML, *S),
    "qwen-1.5": (chatml_with("You are a helpful assistant"), "", "<|im_end|>"),
    "qwen-2": (chatml_with("You are a helpful assistant."), "", "<|im_end|>"),
    "qwen-2.5": (QWEN_2_5.replace("SYSTEM", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."), "", "<|im_end|>"),
    "qwen-2.5 base": (QWEN_2_5.replace("SYSTEM", "You are a helpful assistant."), "", "<|endoftext|>"),
    "smollm-2": (chatml_with("You are a helpful AI assistant named SmolLM, trained by Hugging Face"), "<|im_start|>", "<|im_end|>"),
    "llama-2": (LLAMA_2, *S),
    "llama-3": (LLAMA_3 + "{% if add_generation_prompt %}" + LLAMA_3_ANSWER + "{% endif %}", "<|begin_of_text|>", "<|eot_id|>"),
    "llama-3 first": (LLAMA_3 + LLAMA_3_ANSWER, "<|begin_of_text|>", "<|end_of_text|>"),
    "llama-3.1": (LLAMA_3_1, "<|begin_of_text|>", "<|eot_id|>"),
    "mistral-0.1": (mistral("message['content'] + eos_token + ' ' "), *S),
    "mistral-0.2": (mistral("message['content'] + eos_token"), *S),
    "mistral-v1": (MISTRAL_V1, *S),
    "mistral-v3": (MISTRAL_V3, *S),
    "mistral-v3 first": (MISTRAL_V3.replace("loop.last and system_message", "loop.first and system_message"), *S),
    "zephyr": (ZEPHYR, *S),
    "gemma": (GEMMA, "<bos>", "<eos>"),
    "phi-3-mini": ("{{ bos_token }}" + PHI_3_PAIRS, "<s>", "<|endoftext|>"),
    "phi-3-medium": (PHI_3_PAIRS, "<s>", "<|endoftext|>"),
    "phi-3-small": (PHI_3_SMALL, "<|endoftext|>", "<|endoftext|>"),
    "phi-3.5": (PHI_3_5, "<s>", "<|endoftext|>"),
    "vicuna": (vicuna(" '' + message['content'] + '\\n\\n'"), *S),
    "orca-vicuna": (vicuna("'SYSTEM: ' + message['content'] + '\\n'"), *S),
    "deepseek-2": (DEEPSEEK_2, "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "openchat": (OPENCHAT, "<s>", "<|end_of_turn|>"),
    "monarch": (MONARCH, *S),
    "llama-3.2": (LLAMA_3_2, "<|begin_of_text|>", "<|eot_id|>"),
    "qwen-3": (QWEN_3, "", "<|im_end|>"),
    "qwen-3 first": (QWEN_3_FIRST, "", "<|im_end|>"),
    "granite-3": (GRANITE_3, "<|end_of_text|>", "<|end_of_text|>"),
}

# Programs for conversations with functions alone, beside a default one.
TEXT_OR_OBJECT = HERMES[HERMES.index("                {%- if tool_call.arguments is string %}"):HERMES.index("            {%- endif %}\n             {{- '}' }}")]
TOOL_TEMPLATES = {"hermes": (HERMES, "<|begin_of_text|>", "<|im_end|>"),
                  "hermes first": (HERMES.replace(TEXT_OR_OBJECT, "                {{- tool_call.arguments|tojson }}\n"), "<|begin_of_text|>", "<|im_end|>")}

WORDS = ["hello", "who are you?", "1 < 2 & 3", "  led by spaces", "ended by spaces \t ", "two\nlines", "\n\nlines around\n", "<|im_end|>", "</s>", "[/INST]",
         "<|user|>", "it's \"quoted\" \\n", "\u00a0no break\u3000", "na\u00efve \u2603", "\U0001f600\U0001f468\u200d\U0001f469", "{{ bos_token }}", "{% raw %}", "a\u0085", "\u2028x\u001f", "User: me\nAssistant: you"]


def conversation(rng):
    """Mostly a system's message or none, then the user and the assistant in turn; sometimes in any order."""
    wild = rng.random() < 0.15
    roles = [rng.choice(["system", "user", "assistant"]) for _ in range(rng.randint(1, 4))] if wild else (
        ["system"] * (rng.random() < 0.4) + ["user", "assistant"] * rng.randint(0, 2) + ["user"] + ["assistant"] * (rng.random() < 0.15))
    texts = [" ".join(rng.sample(WORDS, rng.randint(1, 2))) for _ in roles]
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts)], "answers": rng.random() < 0.85}


VALUES = ["x", "", "it's \"quoted\" \\n", "na\u00efve \u2603 \U0001f600", "<tool_call>", "<|im_end|>\n", "\x01\x1f\x7f\b\f\r\t", "a/b", 0, -7, 2**53, 1.0, 0.1, -2.5e-7, 1e16, 123456789012345.0, 1e300, 5e-324,
          True, False, None]
TOOLS = [{"type": "function", "function": {"name": "now"}},
         {"type": "function", "function": {"name": "get_weather", "description": "The weather \"now\" in a city, as it's \u2603", "parameters": {
             "type": "object", "properties": {"city": {"type": "string", "enum": ["Bern", "Z\u00fcrich"]}, "days": {"type": "integer", "minimum": 1, "default": 1.5}}, "required": ["city"]}}},
         {"type": "function", "function": {"name": "set-lamp_2", "description": "</tools> <|im_end|>\n", "parameters": {"type": "object", "properties": {}, "additionalProperties": True}, "strict": False}}]


def value(rng, depth=0):
    kind = rng.random()
    if depth < 3 and kind < 0.15:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if depth < 3 and kind < 0.3:
        return {rng.choice(["a", "b c", "\u00e9", "\"", "n\n"]): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(VALUES)


def exchange(rng, first, single):
    """Calls by the assistant, with their results."""
    calls = [{"id": f"call_{first + i}", "type": "function", "function": {"name": rng.choice(TOOLS)["function"]["name"], "arguments": {k: value(rng) for k in rng.sample(["city", "days", "\u00fc x"], rng.randint(0, 3))}}}
             for i in range(1 if single else rng.randint(1, 3))]
    results = [{"role": "tool", "tool_call_id": c["id"], "content": rng.choice(WORDS)} for c in calls]
    rng.shuffle(results)
    text = "" if single or rng.random() < 0.6 else rng.choice(WORDS)
    return [{"role": "assistant", "content": text, "tool_calls": calls}, *results]


def tool_conversation(rng):
    single, messages = rng.random() < 0.5, []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(WORDS)})
    for i in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": rng.choice(WORDS)})
        for k in range(rng.randint(0, 2)):
            messages += exchange(rng, 100 * i + 10 * k, single)
        if rng.random() < 0.7:
            messages.append({"role": "assistant", "content": rng.choice(WORDS)})
    return {"messages": messages, "tools": rng.sample(TOOLS, rng.randint(1, 3)), "answers": rng.random() < 0.85}


def array_conversation(rng):
    """As tool_conversation, for templates in which calls have short ids and no text, but for a few."""
    one = tool_conversation(rng)
    ids = {}
    for m in one["messages"]:
        for c in m.get("tool_calls", []):
            number = int(c["id"].removeprefix("call_"))
            ids[c["id"]] = c["id"] if rng.random() < 0.03 else rng.choice([f"call{number:05}", f"{number:07}\u00e9\""])
            c["id"] = ids[c["id"]]
        if "tool_calls" in m:
            m["content"] = "" if rng.random() < 0.97 else "x"
        if m["role"] == "tool":
            m["tool_call_id"] = ids[m["tool_call_id"]]
    if rng.random() < 0.3 and len(one["messages"]) > 1:  # two equal questions
        questions = [m for m in one["messages"] if m["role"] == "user"]
        questions[0]["content"] = questions[-1]["content"]
    return one


TYPES = ["string", "number", "integer", "boolean", "array", "object", ["string", "integer"], ["array", "object"], [], "", 7, True, None]


def schema(rng, depth=0):
    """Make a parameter's schema; few have a type that the template for signatures cannot name."""
    made = {} if rng.random() < 0.15 else {"type": rng.choice(["null", ["string", "null"]]) if rng.random() < 0.02 else rng.choice(TYPES)}
    if rng.random() < 0.6:
        made["description"] = rng.choice(WORDS)
    if rng.random() < 0.3:
        made["enum"] = [rng.choice(VALUES)]
    if rng.random() < 0.4 and depth < 3:
        made["additionalProperties"] = rng.choice([True, False, schema(rng, depth + 1)])
    if rng.random() < 0.2:
        made["items"] = {"type": "string"}
    return made


def signature(rng):
    properties = {name: schema(rng) for name in rng.sample(["city", "days", "\u00fc x", "a\"b"], rng.randint(0, 4))}
    function = {"name": rng.choice(["now", "get_weather", "set-lamp_2"]), "description": rng.choice(WORDS)}
    function["parameters"] = {"type": "object", "properties": properties} if rng.random() < 0.9 else {"type": "object"}
    if rng.random() < 0.04:
        del function[rng.choice(["description", "parameters"])]
    return {"type": "function", "function": function}


def signature_conversation(rng):
    """As tool_conversation, with other functions, and calls without a text, but for a few."""
    one = tool_conversation(rng)
    for m in one["messages"]:
        if "tool_calls" in m:
            m["content"] = "" if rng.random() < 0.97 else "x"
    tools = {t["function"]["name"]: t for t in (signature(rng) for _ in range(rng.randint(1, 3)))}
    return {**one, "tools": list(tools.values())}


THOUGHTS = ["<think>", "</think>", "<think>\n", "\n</think>\n\n", "\n", "a", "<tool_call>", "I see.\n", ""]


def thinking_conversation(rng):
    """As tool_conversation, with parts of reasoning in the answers, and results in messages of the user."""
    one = tool_conversation(rng)
    for m in one["messages"]:
        if m["role"] == "assistant":
            m["content"] = (f"<think>\n{rng.choice(WORDS)}\n</think>\n\n{rng.choice(WORDS)}" if rng.random() < 0.4 else
                            "".join(rng.choices(THOUGHTS, k=rng.randint(0, 6))))
        elif m["role"] == "user" and rng.random() < 0.3:
            m["content"] = rng.choice(["<tool_response>", ""]) + m["content"] + rng.choice(["</tool_response>", ""])
    if one["messages"][0]["role"] == "system" and rng.random() < 0.3:
        one["messages"][0]["content"] = ""
    if rng.random() < 0.1:  # no question
        one["messages"] = [{"role": "assistant", "content": "<think>x</think>y"}]
    return one


def with_texts(one):
    """The arguments of calls as OpenAI has them."""
    def call(c):
        return {**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False, separators=(",", ":"))}}
    return {**one, "messages": [{**m, "tool_calls": [call(c) for c in m["tool_calls"]]} if "tool_calls" in m else m for m in one["messages"]]}


def apply(template, messages, answers, tools=None):
    program, bos, eos = template
    return render_jinja_template([messages], tools=tools, chat_template=program, add_generation_prompt=answers, bos_token=bos, eos_token=eos, date_string="26 Jul 2024")[0][0]


def render_tools(template, one):
    try:
        return apply(template, one["messages"], one["answers"], one["tools"])
    except TemplateError:
        return None


def render_whole(template, one):
    """None also if the text lacks a message."""
    marked = [{**m, "content": f"message {i}." if m["content"] else ""} for i, m in enumerate(one["messages"])]
    try:
        whole = all(m["content"] in apply(template, marked, True, one["tools"]) for m in marked)
        return apply(template, one["messages"], one["answers"], one["tools"]) if whole else None
    except (TemplateError, TypeError, RecursionError):
        return None


def render(template, one):
    marked = [{**m, "content": f"message {i}."} for i, m in enumerate(one["messages"])]
    try:
        whole = all(m["content"] in apply(template, marked, True) for m in marked)
        return apply(template, one["messages"], one["answers"]) if whole else None
    except TemplateError:
        return None


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, ensure_ascii=False, indent=0) + "\n")


def main():
    rng = random.Random(15)
    conversations = [conversation(rng) for _ in range(200)]
    rendered = {}
    for name, template in TEMPLATES.items():
        rendered[name] = []
        for one in conversations:
            rendered[name].append(render(template, one))
            if sum(t is not None for t in rendered[name]) == ENOUGH:
                break
    used = max(map(len, rendered.values()))
    assert all(sum(t is not None for t in texts) == ENOUGH for texts in rendered.values()), {n: len(t) for n, t in rendered.items()}
    write("templates.json", {name: {"program": program, "bos": bos, "eos": eos} for name, (program, bos, eos) in TEMPLATES.items()})
    write("conversations.json", conversations[:used])
    write("rendered.json", rendered)
    rng = random.Random(16)
    conversations = [tool_conversation(rng) for _ in range(50)]
    write("tools.json", [with_texts(one) for one in conversations])
    write("rendered_tools.json", {name: [render_tools(TEMPLATES[name], one) for one in conversations] for name in ("qwen-2.5", "llama-3.1", "llama-3.2", "qwen-3")})
    rng = random.Random(18)
    conversations = [array_conversation(rng) for _ in range(120)]
    write("array_tools.json", [with_texts(one) for one in conversations])
    write("rendered_array_tools.json", {name: [render_whole(TEMPLATES[name], one) for one in conversations] for name in ("mistral-v3", "mistral-v3 first")})
    rng = random.Random(19)
    conversations = [signature_conversation(rng) for _ in range(120)]
    write("tool_templates.json", {name: {"program": program, "bos": bos, "eos": eos} for name, (program, bos, eos) in TOOL_TEMPLATES.items()})
    write("signature_tools.json", [with_texts(one) for one in conversations])
    write("rendered_signature_tools.json", {name: [render_whole(template, one) for one in conversations] for name, template in TOOL_TEMPLATES.items()})
    rng = random.Random(17)
    conversations = [thinking_conversation(rng) for _ in range(40)]
    texts = [render_tools(TEMPLATES["qwen-3"], one) for one in conversations]
    assert texts == [render_tools(TEMPLATES["qwen-3 first"], one) for one in conversations]
    write("thoughts.json", [with_texts(one) for one in conversations])
    write("rendered_thoughts.json", {"qwen-3": texts})


main()
