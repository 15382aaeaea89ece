"""Chat templates with the markers and habits of the real families, much shortened."""

GEMMA3 = """{{ bos_token }}
{%- set ns = namespace(system='') -%}
{%- if messages[0].role == 'system' -%}
  {%- set ns.system = (messages[0].content if messages[0].content is string else messages[0].content[0].text) + '\n\n' -%}
  {%- set turns = messages[1:] -%}
{%- else -%}{%- set turns = messages -%}{%- endif -%}
{%- for m in turns -%}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
    {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- endif -%}
  {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (ns.system if loop.first else '') }}
  {%- if m.content is string -%}{{ m.content | trim }}
  {%- else -%}{%- for p in m.content -%}
    {%- if p.type == 'image' -%}{{ '<start_of_image>' }}{%- else -%}{{ p.text | trim }}{%- endif -%}
  {%- endfor -%}{%- endif -%}
  {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

CHATML = """{%- if tools -%}
  {{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if messages[0].role == 'system' else '') }}
  {{- 'Functions:\n' }}
  {%- for tool in tools -%}{{- (tool | tojson) + '\n' -}}{%- endfor -%}
  {{- 'Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\n' }}
{%- elif messages[0].role == 'system' -%}
  {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif -%}
{%- for m in messages -%}
  {%- if m.role != 'system' or not loop.first -%}
  {{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}
  {%- if m.role == 'tool' -%}{{- '<tool_response>\n' -}}{%- endif -%}
  {%- if m.content is string -%}{{- m.content -}}
  {%- else -%}{%- for p in m.content -%}
    {%- if p.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}{%- else -%}{{- p.text -}}{%- endif -%}
  {%- endfor -%}{%- endif -%}
  {%- if m.role == 'tool' -%}{{- '\n</tool_response>' -}}{%- endif -%}
  {%- for c in m.tool_calls or [] -%}
    {{- '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": {' -}}
    {%- for key, value in c.function.arguments | items -%}
      {{- '"' + key + '": ' + (value | tojson) + (', ' if not loop.last else '') -}}
    {%- endfor -%}
    {{- '}}\n</tool_call>' -}}
  {%- endfor -%}
  {{- '<|im_end|>\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

GLM = CHATML.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "<|begin_of_image|><|image|><|end_of_image|>"
)

NO_SYSTEM = """{%- for m in messages -%}
  {%- if m.role == 'system' -%}{{ raise_exception('System role not supported') }}{%- endif -%}
  {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""

THINKING = CHATML.replace(
    "'<|im_start|>assistant\n' -}}{%- endif -%}",
    "'<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n') -}}{%- endif -%}",
)
