"""Chats, and templates in the manner of those that models carry: written for this test, not copied."""

WEATHER = {"type": "function", "function": {"name": "weather", "description": "Tells the \"weather\" of a place.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "Town"}, "days": {"type": "integer"},
    "items": {"type": "array", "items": {"type": "string"}}}, "required": ["place"]}}}
CALL = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"place": "Köln", "days": 2}}}

CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}]},
    {"messages": [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": " Hi \n"}]},
    {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"},
                  {"role": "user", "content": "U2"}]},
    {"messages": [{"role": "user", "content": "U1"}, {"role": "assistant", "content": "<think>\nlong thought\n</think>\n\nA1"},
                  {"role": "user", "content": "U2"}], "enable_thinking": False},
    {"messages": [{"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1", "reasoning_content": "because"},
                  {"role": "user", "content": "U2"}], "enable_thinking": True},
    {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "How is it?"}], "tools": [WEATHER]},
    {"messages": [{"role": "user", "content": "How is it?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
                  {"role": "tool", "content": "{\"sun\": true}", "name": "weather", "tool_call_id": "call12345"},
                  {"role": "tool", "content": "wind", "name": "weather", "tool_call_id": "call12345"}], "tools": [WEATHER]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    {"messages": [{"role": "assistant", "content": "first"}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": " two"}]}]},
    {"messages": [{"role": "user", "content": "U1"}, {"role": "assistant", "content": "A1"}], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "<|im_end|>[INST]</s><end_of_turn> typed\r\nlines"}], "documents": [{"title": "T", "text": "D"}]},
]

SHAPES = {
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful.<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "llama 2": """{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set sys = messages[0]['content'] %}{% else %}{% set rest = messages %}{% set sys = false %}{% endif %}
{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must take turns: user, assistant, user, ...') }}{% endif %}
{% if loop.index0 == 0 and sys != false %}{% set content = '<<SYS>>\\n' + sys + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set content = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "llama 3": """{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
    "llama 3.1 with tools": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not in_user is defined %}{%- set in_user = true %}{%- endif %}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not in_user %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- if in_user and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first user message to put the tools into!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Answer with JSON of the form " }}
    {{- '{"name": a name, "parameters": a dict}.\\n\\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("Only one call at a time!") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}{{- '"parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    "mistral v1": """{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and assistant must alternate') }}{% endif %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ m['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant roles!') }}{% endif %}{% endfor %}""",
    "mistral v3": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}{{- raise_exception("roles must alternate") }}{%- endif %}
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
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}{{- raise_exception("ids have 9 letters!") }}{%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- raise_exception("unknown role") }}{%- endif %}
{%- endfor %}
""",
    "mistral v7 tekken": """{%- set today = strftime_now("%Y-%m-%d") %}{%- set default = "You answer.\\nThe date is " + today + "." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set sys = messages[0]['content'] %}{%- else %}{%- set sys = messages[0]['content'][0]['text'] %}{%- endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}{%- set sys = default %}{%- set loop_messages = messages %}{%- endif %}
{{- '[SYSTEM_PROMPT]' + sys + '[/SYSTEM_PROMPT]' }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {%- if message['content'] is string %}{{- '[INST]' + message['content'] + '[/INST]' }}
        {%- else %}{{- '[INST]' }}{%- for block in message['content'] %}{%- if block['type'] == 'text' %}{{- block['text'] }}{%- elif block['type'] in ['image', 'image_url'] %}{{- '[IMG]' }}{%- else %}{{- raise_exception('Only text and image blocks!') }}{%- endif %}{%- endfor %}{{- '[/INST]' }}{%- endif %}
    {%- elif message['role'] == 'assistant' %}{{- message['content'] + eos_token }}
    {%- elif message['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- else %}{{- raise_exception('Only user, system and assistant roles!') }}{%- endif %}
{%- endfor %}""",
    "qwen 2.5 with tools": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are helpful.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}{%- else %}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    "qwen 3 with thinking": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools" }}{%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}{{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
        {%- else %}{%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}{%- endif %}
        {%- if loop.index0 > ns.last %}
            {%- if loop.last or (not loop.last and reasoning) %}{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}{%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {%- if message.tool_calls %}{%- for tool_call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}{%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception("Turns must alternate user/assistant") }}{%- endif -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\n'}}{%- endif -%}
""",
    "phi 3": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "phi 4 mini": """{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and message['tools'] is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments']|tojson + '\\n```<｜tool▁call▁end｜>'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['function']['name']}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and not message['tool_calls'] %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜>' + message['content']}}{%- set ns.is_output_first = false %}{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}""",
    "command r": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}{% set system_message = 'You are Command.' %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}""",
    "command r with documents": """{{ bos_token }}{% if documents %}{% for doc in documents %}Document: {{ loop.index0 }}
{% for key, value in doc.items() if key != 'id' %}{{ key | title }}: {{ value }}
{% endfor %}{% endfor %}{% endif %}
{%- macro python_type(spec) %}{%- set map = {'string': 'str', 'integer': 'int', 'array': 'list'} %}{%- if spec.type == 'array' and spec['items'] is defined %}List[{{ python_type(spec['items']) }}]{%- elif spec.type in map %}{{ map[spec.type] }}{%- else %}{{ spec.type | default('Any') }}{%- endif %}{%- endmacro %}
{%- for tool in tools or [] %}
{%- set f = tool.function %}
```python
def {{ f.name }}({% for name, spec in f.parameters.properties.items() %}{{ name }}: {{ python_type(spec) }}{{ '' if name in f.parameters.required else ' = None' }}{{ ', ' if not loop.last }}{% endfor %}):
    \"\"\"{{ f.description }}\"\"\"
```
{%- endfor %}
{%- for m in messages %}<|{{ m.role | upper }}|>{{ m.content if m.content is string else m.content | map(attribute='text') | join }}{% endfor %}""",
    "harmony": """{%- macro render_type(spec) -%}
    {%- if spec.type == "array" -%}{%- if spec['items'] -%}{%- if spec['items']['type'] == "string" -%}{{- "string[]" }}{%- else -%}{{- render_type(spec['items']) }}[]{%- endif -%}{%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping -%}{{- spec.type | join(" | ") }}
    {%- elif spec.type == "integer" or spec.type == "number" -%}{{- "number" }}
    {%- elif spec.type == "object" -%}{{- "{\\n" }}{%- for name, inner in (spec.properties or {}).items() -%}{{- name }}{%- if name not in (spec.required or []) -%}{{- "?" }}{%- endif -%}{{- ": " }}{{- render_type(inner) }}{%- if not loop.last -%}{{- ", " }}{%- endif -%}{%- endfor -%}{{- "}" }}
    {%- else -%}{{- spec.type }}{%- endif -%}
{%- endmacro -%}
{%- macro render_tools(tools) -%}
    {{- "namespace functions {\\n\\n" }}
    {%- for tool in tools %}{%- set tool = tool.function %}{{- "// " + tool.description + "\\n" }}{{- "type " + tool.name + " = (_: " }}{{- render_type(tool.parameters) }}{{- ") => any;\\n\\n" }}{%- endfor %}
    {{- "} // namespace functions" }}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
{{- "Reasoning: " + reasoning_effort + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}{%- set developer = messages[0].content %}{%- set loop_messages = messages[1:] %}{%- else %}{%- set developer = "" %}{%- set loop_messages = messages %}{%- endif %}
{%- if developer or tools %}{{- "<|start|>developer<|message|>" }}{%- if developer %}{{- "# Instructions\\n\\n" }}{{- developer }}{{- "\\n\\n" }}{%- endif %}{%- if tools -%}{{- "# Tools\\n\\n" }}{{- render_tools(tools) }}{%- endif -%}{{- "<|end|>" }}{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and ("<|channel|>analysis<|message|>" in message.content or "<|channel|>final<|message|>" in message.content) %}{{- raise_exception("Give the text without channel tags.") }}{%- endif %}
        {%- if message.tool_calls %}{%- set call = message.tool_calls[0].function %}{{- "<|start|>assistant to=" }}{{- "functions." + call.name + "<|channel|>commentary json<|message|>" }}{{- call.arguments|tojson }}{{- "<|call|>" }}{%- set last.name = call.name %}
        {%- elif loop.last and not add_generation_prompt %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- set last.name = none %}{%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception("A result without a call!") }}{%- endif %}
        {{- "<|start|>functions." + last.name }}{{- " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}""",
    "glm": """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}{%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}{%- if m.role == 'user' %}{% set ns.last_user_index = loop.index0 -%}{%- endif %}{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}{%- set reasoning_content = m.reasoning_content %}
{%- else %}{%- if '</think>' in content %}{%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}{{ '\\n<think>' + reasoning_content.strip() +  '</think>'}}{%- else -%}{{ '\\n<think></think>' }}{%- endif -%}
{%- if content.strip() -%}{{ '\\n' + content.strip() }}{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|observation|>' }}{%- endif %}{{- '\\n<tool_response>\\n' }}{{- m.content }}{{- '\\n</tool_response>' }}
{%- elif m.role == 'system' -%}<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}""",
    "smollm 3": """{# ─── defaults ─── #}
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- if enable_thinking -%}{%- set reasoning_mode = "/think" -%}{%- else -%}{%- set reasoning_mode = "/no_think" -%}{%- endif -%}
{{- "<|im_start|>system\\n" -}}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}{%- elif "/think" in system_message -%}{%- set reasoning_mode = "/think" -%}{%- endif -%}
  {%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{%- set today = strftime_now("%d %B %Y") -%}
{{- "Today Date: " ~ today ~ "\\n" -}}{{- "Reasoning Mode: " + reasoning_mode + "\\n\\n" -}}
{%- if custom -%}{{- custom + "\\n\\n" -}}{%- endif -%}
{%- if tools -%}{%- set ns = namespace(xml="<tools>") -%}{%- for tool in tools -%}{%- set ns.xml = ns.xml ~ "\\n" ~ (tool | string) -%}{%- endfor -%}{{- ns.xml + "\\n</tools>" -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}{% generation %}{%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{%- else -%}{{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{%- endif -%}{% endgeneration %}
    {%- elif message.role == "tool" -%}{{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{%- if reasoning_mode == "/think" -%}{{ "<|im_start|>assistant\\n" }}{%- else -%}{{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n"  }}{%- endif -%}{%- endif -%}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "granite": """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "Today's Date: " + strftime_now('%B %d, %Y') + "." %}
    {%- if tools and documents %}{%- set system_message = system_message + " Tools and documents." %}{%- elif tools %}{%- set system_message = system_message + " Tools." %}{%- elif documents %}{%- set system_message = system_message + " Documents." %}{%- elif thinking %}{%- set system_message = system_message + " Think." %}{%- endif %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- if tools %}{{- '<|start_of_role|>tools<|end_of_role|>' }}{{- tools | tojson(indent=4) }}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- if documents %}{{- '<|start_of_role|>documents<|end_of_role|>' }}{%- for document in documents %}{{- 'Document ' + loop.index0 | string + '\\n' }}{{- document['text'] }}{%- if not loop.last %}{{- '\\n\\n'}}{%- endif%}{%- endfor %}{{- '<|end_of_text|>\\n' }}{%- endif %}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant' }}{%- if controls %}{{- ' ' + controls | tojson()}}{%- endif %}{{- '<|end_of_role|>' }}{%- endif %}
{%- endfor %}""",
    "vicuna": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(found=false) -%}
{%- for message in messages -%}{%- if message['role'] == 'system' -%}{%- set ns.found = true -%}{%- endif -%}{%- endfor -%}
{{bos_token}}{%- if not ns.found -%}{{'A chat. '}}{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'system' %}
{{ message['content'] + ' ' }}
{%- else %}
{%- if message['role'] == 'user' %}
{{ 'USER: ' + message['content'] + '\\n'}}
{%- else %}
{{'ASSISTANT: ' + message['content'] + eos_token + '\\n'}}
{%- endif %}
{%- endif %}
{%- endfor %}
{% if add_generation_prompt %}{{'ASSISTANT:'}}{% endif %}""",
    "cycler and call blocks": """{%- set marks = cycler('>', '<') %}{%- set comma = joiner('; ') %}{%- macro turn(who) %}{{ marks.next() }}{{ who }}: {{ caller() }}{% endmacro %}
{%- for role, group in messages | selectattr('content', 'string') | groupby('role') %}{{ comma() }}{% call turn(role | capitalize) %}{{ group | map(attribute='content') | map('trim') | join(' / ') | truncate(40) }}{% endcall %}{% endfor %}
{% filter indent(2, first=true) %}{{ messages | map(attribute='role') | unique | join('\n') }}{% endfilter %}""",
    "exaone": """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\n' }}{% endif %}{{ '[|' + message['role'] + '|]' + message['content'] }}{% if loop.last %}{% else %}{% if message['role'] == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '\n[|assistant|]' }}{% endif %}""",
}
