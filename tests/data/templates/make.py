"""Makes `jinja2.json`: what Jinja2, set up as in transformers, makes of the constructs and template shapes below.

Usage: make.py. Needs the PyPI package jinja2 (3.1.6). The templates are our own, in the manner of those that models carry.
"""

import datetime
import json
import os

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shapes import CHATS, SHAPES

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = datetime.datetime(2024, 11, 29, 14, 44, 5)


class Generation(jinja2.ext.Extension):
    """The tag that marks the assistant's text for training."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi <b>you</b> & \"they\"\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes, 'sir'.", "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None, True], "c": "é"}}}]},
    {"role": "tool", "content": "3", "name": "add"},
    {"role": "user", "content": None},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "items": {"type": "array", "items": {"type": "string"}}},
    "required": ["a"]}}}]
VARIABLES = {
    "enable_thinking": False, "n": 7, "x": 2.5, "neg": -7, "s": "Hello, World", "u": "Grüße, 世界 🙂", "empty": "", "nothing": None,
    "words": ["pear", "Apple", "fig", "apple"], "numbers": [3, 1, 2, 10, 1], "nested": [[1, [2, (3)]], {"k": "v'\"", "z": None}],
    "people": [{"name": "Bo", "age": 30, "city": {"name": "Rom"}}, {"name": "al", "age": 25, "city": {"name": "Ulm"}},
               {"name": "Cy", "age": 30, "city": {"name": "Bern"}}],
    "d": {"b": 2, "a": 1, "C": 3, "items": 4}, "text": "  a line\n\tanother\r\n\r\nlast one  ", "path": "a/b/c.tar.gz", "big": 12345678901234567890,
    "f": [0.1, 1.0, 1e16, 1e15, 123456789.123, 1e-4, 1e-5, 1e300, -0.0, 2.0e-7], "bos_token": "<s>", "eos_token": "</s>",
}

CONSTRUCTS = r'''
{{ none }}|{{ true }}|{{ false }}|{{ None }}|{{ True }}|{{ False }}|{{ nothing }}|{{ missing }}|
{{ 1 }}|{{ 1.0 }}|{{ 1_000 }}|{{ 0x1F }}|{{ 0b101 }}|{{ 0o17 }}|{{ 1e3 }}|{{ 1.5e-7 }}|{{ 10e20 }}
{{ f }}
{% for v in f %}{{ v }} {% endfor %}
{{ nested }}|{{ d }}|{{ words }}
{{ ["it's", 'say "x"', 'b\\s', 'a\'"'] }}
{{ ['\n', '\t', '\r', '\x00', '\x7f', '\u00e9', '\u200b', '\u00ad', '\U0001f642'] }}
{{ "\x41\u00e9\U0001F642\101\60\7|\a\b\f\v" }}
{{ "\q\d\." }}|{{ 'a\
b' }}
{{ 'a' 'b' "c" }}
{{ ("a", 1) }}|{{ (1,) }}|{{ () }}|{{ 1, 2 }}
{{ {'a': 1, 2: 'b', none: true, 1.5: [1]} }}
{{ {'a': 1, 'a': 2} }}|{{ {1: 'a', true: 'b', 1.0: 'c'} }}
{{ 7 / 2 }}|{{ 8 / 2 }}|{{ 7 // 2 }}|{{ neg // 2 }}|{{ 7 % 3 }}|{{ neg % 3 }}|{{ 7 % -3 }}|{{ 2 ** 10 }}|{{ 2 ** -1 }}|{{ 7.5 // 2 }}|{{ -7.5 % 2 }}
{{ 1 + 2 * 3 - 4 }}|{{ (1 + 2) * 3 }}|{{ -2 ** 2 }}|{{ 2 ** 3 ** 2 }}|{{ - 3 }}|{{ +3 }}|{{ --3 }}
{{ true + 1 }}|{{ 1 + 1.0 }}|{{ 0.1 + 0.2 }}|{{ 1 / 3 }}|{{ 2 * 1.5 }}
{{ 'ab' + 'cd' }}|{{ 'ab' * 3 }}|{{ 3 * 'x' }}|{{ 'x' * 0 }}|{{ 'x' * -1 }}
{{ [1] + [2, 3] }}|{{ [0] * 3 }}|{{ (1, 2) + (3,) }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] ~ missing }}
{{ 1 < 2 }}|{{ 1 < 2 < 3 }}|{{ 3 > 2 > 2 }}|{{ 'a' < 'b' }}|{{ 'a' == 'a' }}|{{ 1 == 1.0 }}|{{ 1 == true }}|{{ '1' == 1 }}|{{ 1 != 2 }}
{{ [1, 2] < [1, 3] }}|{{ [1] == [1.0] }}|{{ (1, 2) == [1, 2] }}|{{ {'a': 1} == {'a': 1.0} }}|{{ none == false }}
{{ 'a' in 'cat' }}|{{ 'x' not in 'cat' }}|{{ 1 in [1, 2] }}|{{ 'b' in d }}|{{ 2 in d }}|{{ '' in 'a' }}|{{ 3 in range(5) }}|{{ 'a' in missing }}
{{ 1 and 2 }}|{{ 0 and 2 }}|{{ 0 or 'x' }}|{{ '' or none }}|{{ not 1 }}|{{ not missing }}|{{ not '' and 3 }}
{{ 'y' if n > 3 else 'n' }}|{{ 'y' if n > 30 }}|{{ 1 if false else 2 if true else 3 }}
{{ s[0] }}|{{ s[-1] }}|{{ s[1:4] }}|{{ s[::-1] }}|{{ s[:-3] }}|{{ s[::2] }}|{{ s[99] }}|{{ s[99:] }}|{{ s[-99:3] }}
{{ u[0] }}|{{ u[7:9] }}|{{ u[-1] }}|{{ u[::-1] }}|{{ u|length }}
{{ words[1:] }}|{{ words[-2:] }}|{{ words[::-1] }}|{{ words[1:3] }}|{{ words[:0] }}|{{ words[10] }}|{{ (1,2,3)[1:] }}
{{ numbers[::2] }}|{{ numbers[4:1:-1] }}|{{ numbers[-1:-3:-1] }}|{{ numbers[none:2] }}
{{ d.a }}|{{ d['a'] }}|{{ d.zzz }}|{{ d['zzz'] }}|{{ d['items'] }}|{{ d.get('a') }}|{{ d.get('q') }}|{{ d.get('q', 5) }}
{{ d.items is callable }}|{{ d.items() | list }}|{{ d.keys() | list }}|{{ d.values() | list }}
{{ d.items() }}|{{ d.keys() }}|{{ d.values() }}
{{ people.0.name }}|{{ people[1].city.name }}|{{ messages[0]['role'] }}|{{ messages[-1].content }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }},{% endfor %}
{% for c in 'aé🙂' %}[{{ c }}]{% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}
{% for x in [1] %}a{% else %}none{% endfor %}
{% for x in missing %}a{% else %}none{% endfor %}
{% for x in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for x in numbers %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in numbers %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }} {% endfor %}
{% for x in numbers if x > 1 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}
{% for x in numbers if x > 100 %}a{% else %}b{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for a in [1, 2] %}{% for b in [3, 4] %}{{ a }}{{ b }}{{ loop.depth }}{% if b == 3 %}{% break %}{% endif %}{% endfor %}{{ loop.index }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3)), (4, (5, 6))] %}{{ a + b + c }} {% endfor %}
{% for x in [[1, [2, [3]]], 4] recursive %}{{ loop.depth }}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %}|{{ range(3) }}|{{ range(1, 7, 2) | list }}|{{ range(3, 0, -1) | list }}|{{ range(5)|length }}|{{ range(9)[2] }}
{% set x = 0 %}{% for i in [1, 2, 3] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(n=0, t='') %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.n }}{{ ns.t }}{{ ns.zzz }}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}|{% set ns2 = namespace({'q': 5}, r=6) %}{{ ns2.q }}{{ ns2.r }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}
{% if true %}{% set y = 5 %}{% endif %}{{ y }}
{% set y = 1 %}{% for i in [1] %}{% set y = 2 %}{% endfor %}{{ y }}
{% for i in [1, 2] %}{{ q }}{% set q = i %}{{ q }}{% endfor %}{{ q }}
{% set b %}  text {{ n }} {% endset %}[{{ b }}]
{% set b | upper | trim %} text {{ n }} {% endset %}[{{ b }}]
{% set z = 1 %}{% set b %}{% set z = 2 %}{{ z }}{% endset %}{{ b }}{{ z }}
{% filter upper %}abc {{ s }}{% endfilter %}
{% filter replace('a', 'b') | upper %}banana{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}
{% with %}{% set a = 3 %}{{ a }}{% endwith %}{{ a }}
{% if n == 7 %}A{% elif n == 8 %}B{% else %}C{% endif %}
{% if 0 %}A{% elif '' %}B{% elif [] %}C{% elif {} %}D{% elif none %}E{% else %}F{% endif %}
{% if missing is defined and missing.x %}a{% else %}b{% endif %}
{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif %}{{ rest|length }}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, c='z') }}|{{ m() }}|{{ m(b=5, a=4) }}
{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 'b', k=3) }}
{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}in {{ n }}{% endcall %}
{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }};{% endfor %}{% endmacro %}{% call(v, i) each(words) %}{{ i }}={{ v }}{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}x{% endcall %}
{% macro m(a) %}x{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_kwargs }}{{ m.caller }}
{% set g = 5 %}{% macro m() %}{{ g }}{% endmacro %}{% set g = 6 %}{{ m() }}
{% macro m() %}  spaced  {% endmacro %}[{{ m() | trim }}]
{% macro outer() %}{% macro inner(x) %}{{ x * 2 }}{% endmacro %}{{ inner(4) }}{% endmacro %}{{ outer() }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}
{{ dict(a=1, b='x') }}|{{ dict({'c': 3}, d=4) }}|{{ dict([('e', 5)]) }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}
{% set j = joiner() %}{% for x in words %}{{ j() }}{{ x }}{% endfor %}
{% set j = joiner(' | ') %}{{ j() }}a{{ j() }}b{{ j() }}c
{% raw %}{{ not }} {% this %}{% endraw %}|
{%- raw -%}  {{ x }}  {%- endraw -%}  |
{# comment #}a{#- c -#} b {# c2 -#}   c
a{% generation %}b{{ n }}{% endgeneration %}c
{% generation %}{% set zz = 1 %}{% endgeneration %}{{ zz }}
{% block title %}T{{ n }}{% endblock %}
{% print n, s %}
{% autoescape false %}<{{ messages[1].content }}>{% endautoescape %}
{{ '%s is %d years, %5.2f%% %x %r' % ('Bo', 30, 12.345, 255, 'q') }}
{{ '%05d|%-5s|%5s|%+d|% d|%e|%g|%G|%c|%o|%#x|%.3s' % (42, 'ab', 'cd', 5, 6, 12345.678, 0.00001234, 1e20, 'z', 8, 255, 'abcdef') }}
{{ '%(a)s-%(b)03d' % {'a': 'x', 'b': 7} }}|{{ 'x%%y' % () }}|{{ '%s' % 5 }}|{{ '%s' % [1] }}|{{ '%s' % none }}
{{ '%s %s' | format('a', 1) }}|{{ '%(k)s' | format(k='v') }}
{{ '{} {}'.format('a', 1) }}|{{ '{1} {0}'.format('a', 'b') }}|{{ '{x:>5}|{y:<4}|{z:^5}'.format(x=1, y='a', z='m') }}
{{ '{:05.1f}|{:,}|{:x}|{:#b}|{:e}|{:%}|{:+d}|{!r}|{{}}'.format(3.14159, 1234567, 255, 5, 12345.0, 0.25, 3, 'q') }}
{{ '{0[a]} {1.role}'.format({'a': 1}, messages[0]) }}
{{ '{:*^9}|{:>{w}}'.format('mid', 'r', w=4) }}
{{ s.upper() }}|{{ s.lower() }}|{{ s.title() }}|{{ s.capitalize() }}|{{ s.swapcase() }}|{{ 'STRASSE ß'.casefold() }}
{{ "they're bill's".title() }}|{{ "hello world-wide (web)" | title }}|{{ 'HELLO' | capitalize }}
{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.strip('ab') }}|{{ 'xa'.lstrip('x') }}|{{ 'ax'.rstrip('x') }}
{{ s.split(', ') }}|{{ s.split('o', 1) }}|{{ ' a  b '.split() }}|{{ 'a,b,,c'.split(',') }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ 'a b c'.split(none, 1) }}|{{ 'a b c'.split(maxsplit=1) }}
{{ 'a.b.c'.rsplit('.', 1) }}|{{ ' a  b  c '.rsplit(none, 1) }}|{{ 'a.b.c'.rsplit('.') }}|{{ 'a b c'.rsplit() }}
{{ ' x  y  z '.split(none, 0) }}|{{ ' x  y  z '.rsplit(none, 0) }}|{{ ' x  y  z '.split(none, 2) }}
{{ path.partition('/') }}|{{ path.rpartition('/') }}|{{ path.partition('zz') }}|{{ path.rpartition('zz') }}
{{ path.find('b') }}|{{ path.find('zz') }}|{{ path.rfind('/') }}|{{ path.index('b') }}|{{ path.rindex('.') }}|{{ path.find('/', 2) }}|{{ path.find('c', 0, 3) }}|{{ u.find('世') }}
{{ path.count('/') }}|{{ 'aaaa'.count('aa') }}|{{ 'abc'.count('') }}|{{ 'aXbX'.count('X', 2) }}
{{ path.startswith('a/') }}|{{ path.endswith('.gz') }}|{{ path.endswith(('.zip', '.gz')) }}|{{ path.startswith('b', 2) }}|{{ path.startswith(('x', 'y')) }}
{{ 'a-b-c'.replace('-', '+') }}|{{ 'a-b-c'.replace('-', '+', 1) }}|{{ 'abc'.replace('', '.') }}|{{ 'aaa'.replace('aa', 'b') }}
{{ path.removeprefix('a/') }}|{{ path.removesuffix('.gz') }}|{{ path.removeprefix('zz') }}
{{ text.splitlines() }}|{{ text.splitlines(true) }}|{{ ''.splitlines() }}|{{ 'a\n'.splitlines() }}
{{ ', '.join(words) }}|{{ ''.join([]) }}|{{ '-'.join('abc') }}
{{ 'ab'.center(7, '*') }}|{{ 'ab'.center(6) }}|{{ 'abc'.center(6, '.') }}|{{ 'ab'.ljust(5, '.') }}|{{ 'ab'.rjust(5) }}|{{ '42'.zfill(5) }}|{{ '-42'.zfill(5) }}
{{ 'abc'.isalpha() }}|{{ 'ab1'.isalnum() }}|{{ '12'.isdigit() }}|{{ ' '.isspace() }}|{{ 'ab'.islower() }}|{{ 'AB'.isupper() }}|{{ 'Ab Cd'.istitle() }}|{{ ''.isalpha() }}|{{ 'a1'.isidentifier() }}|{{ '½'.isnumeric() }}|{{ 'é'.isascii() }}|{{ '12'.isdecimal() }}
{{ 'a\tb'.expandtabs(4) }}|{{ 'a\nb'.isprintable() }}
{{ words.index('fig') }}|{{ numbers.count(1) }}|{{ (1, 2, 1).count(1) }}
{{ d.copy() }}|{{ words.copy() }}
{{ 2.0.is_integer() }}|{{ x.is_integer() }}|{{ (255).bit_length() }}
{{ s | upper }}|{{ s | lower }}|{{ s | title }}|{{ 'hELLO wORLD' | capitalize }}|{{ s | length }}|{{ s | count }}
{{ '  x ' | trim }}|{{ 'xxaxx' | trim('x') }}|{{ none | trim }}|{{ 5 | trim }}
{{ 'a-b-c' | replace('-', '+') }}|{{ 'a-b-c' | replace('-', '+', 1) }}|{{ 123 | replace(2, 'x') }}
{{ words | join(', ') }}|{{ numbers | join }}|{{ people | join('/', attribute='name') }}|{{ 'abc' | join('.') }}|{{ d | join('.') }}
{{ words | first }}|{{ words | last }}|{{ [] | first }}|{{ 'abc' | first }}|{{ 'abc' | last }}|{{ d | first }}
{{ words | sort }}|{{ words | sort(case_sensitive=true) }}|{{ numbers | sort(reverse=true) }}|{{ people | map(attribute='name') | sort | join(',') }}
{{ people | sort(attribute='age,name') | map(attribute='name') | list }}|{{ people | sort(attribute='city.name', reverse=true) | map(attribute='name') | list }}
{{ words | unique | list }}|{{ numbers | unique | list }}|{{ people | unique(attribute='age') | map(attribute='name') | list }}|{{ words | unique(true) | list }}
{{ numbers | min }}|{{ numbers | max }}|{{ words | min }}|{{ people | max(attribute='age') }}|{{ [] | min }}
{{ numbers | sum }}|{{ people | sum(attribute='age') }}|{{ numbers | sum(start=10) }}|{{ [] | sum }}
{{ words | map('upper') | list }}|{{ words | map('replace', 'p', 'P') | list }}|{{ people | map(attribute='city.name') | list }}|{{ people | map(attribute='zz', default='-') | list }}
{{ numbers | select('odd') | list }}|{{ numbers | reject('odd') | list }}|{{ numbers | select('gt', 2) | list }}|{{ ['', 'a', none] | select | list }}|{{ words | select('in', ['fig']) | list }}
{{ people | selectattr('age', 'equalto', 30) | map(attribute='name') | list }}|{{ people | rejectattr('age', '==', 30) | map(attribute='name') | list }}|{{ messages | selectattr('tool_calls', 'defined') | list | length }}|{{ messages | selectattr('tool_calls') | list | length }}
{% for g in people | groupby('age') %}{{ g.grouper }}:{{ g.list | map(attribute='name') | join(',') }};{% endfor %}
{% for k, v in people | groupby('age') %}{{ k }}:{{ v | length }};{% endfor %}
{{ people | groupby('zz', default='-') | length }}
{{ numbers | batch(2) | list }}|{{ numbers | batch(3, '-') | list }}|{{ numbers | slice(2) | list }}|{{ numbers | slice(3, 'x') | list }}
{{ d | dictsort }}|{{ d | dictsort(true) }}|{{ d | dictsort(by='value') }}|{{ d | dictsort(reverse=true) }}
{{ d | items | list }}|{{ missing | items | list }}|{{ d | list }}|{{ 'ab' | list }}|{{ range(3) | list }}
{{ words | reverse | list }}|{{ 'abc' | reverse }}|{{ numbers | reverse | join('-') }}
{{ missing | default('x') }}|{{ '' | default('x') }}|{{ '' | default('x', true) }}|{{ none | d('x') }}|{{ none | d('x', boolean=true) }}|{{ missing | default }}|
{{ '42' | int }}|{{ 'x' | int }}|{{ 'x' | int(5) }}|{{ 3.9 | int }}|{{ '3.9' | int }}|{{ 'ff' | int(base=16) }}|{{ '0x1f' | int(0, 16) }}|{{ true | int }}|{{ none | int }}|{{ ' 7 ' | int }}
{{ '1.5' | float }}|{{ 'x' | float }}|{{ 'x' | float(2.5) }}|{{ 3 | float }}|{{ '1e3' | float }}|{{ 'inf' | float }}|{{ none | float }}
{{ 2.5 | round }}|{{ 3.5 | round }}|{{ 42.55 | round(1) }}|{{ 42.55 | round(1, 'floor') }}|{{ 42.51 | round(1, 'ceil') }}|{{ 42 | round }}|{{ 1234 | round(-2) }}|{{ 2.675 | round(2) }}|{{ -1.5 | round }}
{{ -5 | abs }}|{{ -2.5 | abs }}|{{ (-5) | abs }}
{{ 5 | string }}|{{ none | string }}|{{ [1, 'a'] | string }}|{{ 1.0 | string }}|{{ missing | string }}|
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(2, blank=true) }}|{{ 'a\nb' | indent('>> ') }}|{{ 'a\nb\n' | indent(1) }}|
{{ 'ab' | center(6) }}|{{ 'one two three four' | truncate(9) }}|{{ 'one two three four' | truncate(9, true) }}|{{ 'one two three' | truncate(12) }}|{{ 'one two three four' | truncate(9, false, '..', 0) }}
{{ 'one two  three' | wordcount }}|{{ '<a href="x">t&amp;</a> <b>  c</b>' | striptags }}|{{ '<&>"\'' | escape }}|{{ '<b>' | e }}|{{ '<b>' | safe }}
{{ 'a b&c/d?é' | urlencode }}|{{ {'a b': 'c&d', 'e': 1} | urlencode }}|{{ 1000 | filesizeformat }}|{{ 1 | filesizeformat }}|{{ 123456789 | filesizeformat }}|{{ 1048576 | filesizeformat(true) }}|{{ 999 | filesizeformat }}
{{ people[0] | attr('name') }}|{{ 'x' | attr('upper') is callable }}|{{ s | attr('zzz') }}|
{{ 'the quick brown fox jumps' | wordwrap(10) }}|{{ 'abcdefghij kl' | wordwrap(4) }}
{{ messages | tojson }}
{{ tools | tojson }}|{{ tools[0] | tojson(indent=4) }}
{{ d | tojson(sort_keys=true) }}|{{ d | tojson(indent=2) }}|{{ d | tojson(separators=(',', ':')) }}|{{ d | tojson(indent='\t') }}|{{ d | tojson(indent=0) }}|{{ d | tojson(true, 2) }}|{{ d | tojson(false, none, (';', '=')) }}
{{ u | tojson }}|{{ u | tojson(ensure_ascii=true) }}|{{ '"\\/\n\x01\x7f' | tojson }}|{{ '\x7f' | tojson(true) }}
{{ [] | tojson(indent=2) }}|{{ {} | tojson(indent=2) }}|{{ [[], {}, [1]] | tojson(indent=1) }}|{{ (1, 2) | tojson }}|{{ f | tojson }}|{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ none | tojson }}|{{ true | tojson }}|{{ 1.0 | tojson }}|{{ 'a' | tojson }}|{{ big | tojson }}|{{ '<>&' | tojson }}
{{ messages[2].tool_calls[0].function.arguments | tojson(ensure_ascii=False, separators=(", ", ": ")) }}
{{ 1 is defined }}|{{ missing is defined }}|{{ missing is undefined }}|{{ none is none }}|{{ none is not none }}|{{ nothing is none }}|{{ missing is none }}|{{ d.zz is defined }}
{{ 1 is number }}|{{ 'a' is number }}|{{ true is number }}|{{ 1 is integer }}|{{ true is integer }}|{{ 1.0 is integer }}|{{ 1.0 is float }}|{{ true is boolean }}|{{ 1 is boolean }}
{{ 'a' is string }}|{{ 1 is string }}|{{ [] is string }}|{{ {} is mapping }}|{{ [] is mapping }}|{{ [] is sequence }}|{{ {} is sequence }}|{{ 'a' is sequence }}|{{ 1 is sequence }}|{{ none is sequence }}|{{ () is sequence }}|{{ missing is sequence }}
{{ none is iterable }}|{{ 'a' is iterable }}|{{ [] is iterable }}|{{ {} is iterable }}|{{ 1 is iterable }}|{{ missing is iterable }}|{{ range(2) is iterable }}|{{ range(2) is sequence }}|{{ d.items() is iterable }}|{{ d.items() is sequence }}
{{ 3 is odd }}|{{ 3 is even }}|{{ 9 is divisibleby 3 }}|{{ 9 is divisibleby(4) }}|{{ 'a' is lower }}|{{ 'A' is upper }}|{{ 'Ab' is lower }}
{{ 1 is eq 1 }}|{{ 1 is equalto 2 }}|{{ 1 is ne 2 }}|{{ 1 is lt 2 }}|{{ 1 is gt 2 }}|{{ 2 is ge 2 }}|{{ 2 is le(1) }}|{{ 1 is in [1] }}|{{ 'a' is in 'abc' }}|{{ 3 is not in [1] }}|{{ 1 is sameas 1 }}|{{ true is sameas true }}|{{ 1 is sameas true }}
{{ range is callable }}|{{ s.upper is callable }}|{{ 1 is callable }}|{{ true is true }}|{{ 1 is true }}|{{ false is false }}|{{ 0 is false }}|{{ 'a' is escaped }}
{{ 'x' if 'a' is string and 1 is number else 'y' }}|{{ not 1 is string }}|{{ 1 is not string }}
{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%A, %B %d, %Y %H:%M:%S') }}|{{ strftime_now('%j %y %I %p %a') }}|{{ strftime_now('100%') }}|{{ strftime_now('%Z%z') }}|{{ strftime_now('%-d %e') }}
{{ missing.x is defined }}
{{ missing is defined and missing.x }}|{{ (missing | default({})).x }}|
{{ d.update({'q': 1}) }}
{{ words.append(1) }}
{{ words.pop() }}
{{ d['items'] }}|{{ d.items()|length }}|{{ tools[0].function.parameters.properties['items']['type'] }}
{% set p = tools[0].function.parameters.properties %}{% for k, v in p.items() %}{{ k }}:{{ v.type }},{% endfor %}
{{ missing.x }}
{{ none.x }}|
{{ none.x.y }}
{{ missing() }}
{{ 'a' + 1 }}
{{ 1 + none }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ [1] + (2,) }}
{{ missing + 'x' }}
{{ -'a' }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ none | length }}
{{ 5 | first }}
{{ missing | tojson }}
{{ range(200000) }}
{{ raise_exception('no') }}
{% if false %}{{ raise_exception('no') }}{% endif %}ok
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [1, 2] %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% set a, b = 1 %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{% call m(1) %}x{% endcall %}
{{ 'abc'.index('z') }}
{{ 'abc'.split('') }}
{{ 'abc'.nosuch() }}
{{ words.index('zz') }}
{{ ', '.join([1, 2]) }}
{{ '%d' % 'a' }}
{{ '%s %s' % ('a',) }}
{{ '%s' % ('a', 'b') }}
{{ '{} {}'.format('a') }}
{{ {[]: 1} }}
{{ ['a', 1] | sort }}
{{ words | nosuchfilter }}
{{ 1 is nosuchtest }}
{{ words | join(', ', 1, 2, 3) }}
{{ s.upper(1) }}
{{ d.get() }}
{{ namespace(1) }}
{% set d.a = 1 %}
{{ d.a.b.c }}
{{ 5() }}
{{ s() }}
{{ 'a' if }}
{{ 1 + }}
{{ [1, 2 }}
{% if x %}
{% endif %}
{% for x in y %}
{% nosuchtag %}
{{ x
{% set %}
{{ "abc }}
{{ a b }}
{% macro m( %}{% endmacro %}
{% break %}
{# no end
{{ '\x4' }}
{{ loop }}|{{ loop.index }}
{{ 'a'.b.c }}
{{ self_destruct }}|{{ 'ok' }}
{{ [1, 2, 3,] }}|{{ {'a': 1,} }}|{{ (1, 2,) }}|{{ dict(a=1,) }}
{{ [[1, 2], [3]] | map('length') | list }}|{{ [[3, 1], [2]] | map('sort') | list }}|{{ [[1, 2], [3]] | sum(start=[]) }}
{{ words | map('first') | join }}|{{ ['1', 'b'] | map('int', 9) | list }}|{{ words | map('default', 'z') | list }}
{{ 'A' ~ ('b' | upper) ~ 'c' }}|{{ 'a' | upper ~ 'b' }}|{{ -1 | abs }}|{{ (1 + 2) | string ~ 'x' }}|{{ 1 + 2 | abs }}
{{ not true == false }}|{{ not (1 in [2]) }}|{{ 1 not in [2] and true }}|{{ 1 if 1 in [1] else 2 }}
{{ a.b if a is defined else 'none' }}|{{ (a or {}).b }}|{{ (none or d).a }}
{{ {'a': {'b': {'c': 1}}}.a.b.c }}|{{ [[1, 2], [3, 4]][1][0] }}|{{ {'x': [1, {'y': 2}]}['x'][1]['y'] }}
{{ 'x'.join(['a', 'b']).upper()[1:].lower() }}|{{ s.split(',')[0].lower() | title }}|{{ s | replace('l', 'L') | lower | length }}
{% set m = messages | selectattr('role', 'equalto', 'user') | list %}{{ m | length }}{{ m[0].content }}
{% set last = (messages | last) %}{{ last.role }}|{% set f = messages | first %}{{ f['content'] }}
{% for m in messages %}{% if m.content is string %}{{ m.content | trim }}{% elif m.content is none %}-none-{% endif %}{% if not loop.last %}|{% endif %}{% endfor %}
{% for m in messages %}{%- if m.tool_calls is defined and m.tool_calls %}{%- for c in m.tool_calls %}{{- c.function.name }}({{ c.function.arguments | tojson }}){%- endfor %}{%- endif %}{% endfor %}
{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ loop.index0 }}{% endif %}{% endfor %}
{% set c = messages[2].content %}{% if '</think>' in c %}{{ c.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ c.split('</think>')[-1].lstrip('\n') }}{% endif %}
{% set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{% if ns.multi_step_tool and m.role == 'user' and m.content is string %}{% set ns.multi_step_tool = false %}{% set ns.last_query_index = i %}{% endif %}{% endfor %}{{ ns.last_query_index }}
{% set ns = namespace(sys='') %}{% for m in messages %}{% if m['role'] == 'system' %}{% set ns.sys = ns.sys + m['content'] %}{% endif %}{% endfor %}{{ ns.sys }}
{%- for m in messages -%}  {{ m.role }}  {%- endfor -%}  end
  {%+ if true %}kept{% endif %}
  {% if true %}gone{% endif %}
  {% if true +%}
x
{% endif %}y
{%- if true -%}
   tight
{%- endif -%}
  after
{{ 'a' -}}   
  {{- 'b' }}
{% if true %}
  line
{% endif %}
tail
<a>
    {% for x in [1, 2] %}
    <b>{{ x }}</b>
    {% endfor %}
</a>
    {# gone #}
  kept {# inline #} kept
{{ 'no newline at end' }}
{{ "two" }} {{ 'on' }}{{ " one line" }}
{% set messages = [] %}{{ messages | length }}
{% set bos_token = 'x' %}{{ bos_token }}{{ eos_token }}
{{ bos_token }}{{ bos_token + 'x' }}{{ eos_token if eos_token is defined }}{{ unk_token }}
{{ messages | map(attribute='role') | join(' ') }}|{{ messages | map(attribute='content') | select('string') | list | length }}
{{ enable_thinking is defined and enable_thinking is false }}|{{ not enable_thinking }}|{{ enable_thinking | default(true) }}
{{ big }}|{{ big + 1 }}|{{ 9007199254740993 }}|{{ 10 ** 20 }}|{{ big | int }}|{{ 1e20 | int }}
{{ '' is string }}|{{ '' == none }}|{{ none == none }}|{{ missing == missing2 }}|{{ missing == none }}|{{ missing == '' }}
{{ [1, 2, 3] | last }}|{{ (1, 2) | first }}|{{ [3, 4] | join('-') | length }}|{{ [none, 1] | first }}
{{ [true, false, 1, 0] | unique | list }}|{{ ['a', 'A'] | unique | list }}|{{ [[1], [1]] | length }}
{{ 'x' | int | string | length }}|{{ 'abc' | list | reverse | join }}|{{ 'b a' | upper | list | sort | join }}
{% set x = 'outer' %}{% macro m() %}{% set x = 'inner' %}{{ x }}{% endmacro %}{{ m() }}{{ x }}
{% set l = [] %}{% for i in range(3) %}{% set l = l + [i] %}{% endfor %}{{ l }}
{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set ns.l = ns.l + [i * i] %}{% endfor %}{{ ns.l }}
{% for i in range(2) %}{% for j in range(2) %}{{ i }}{{ j }}{{ loop.index }} {% endfor %}{% endfor %}
{% for i in range(3) %}{% set outer = loop %}{% for j in range(2) %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}
{% for m in messages %}{% if loop.first and m.role != 'system' %}none{% endif %}{% if loop.index > 1 and loop.previtem.role == 'user' %}{{ m.role }}{% endif %}{% endfor %}
{% for x in [1, 2, 3] if x != 2 %}{{ x }}{% else %}-{% endfor %}|{% for x in [] if x %}{% else %}-{% endfor %}
{% for x in numbers | sort | unique | reverse %}{{ x }}{% endfor %}
{% for row in numbers | batch(2) %}{{ row | join(',') }};{% endfor %}
{% for x in words %}{{ x }}{% if loop.nextitem is defined %}>{% endif %}{% endfor %}
{% set it = words | map('upper') %}{{ it | first }}|{{ it | list }}|{{ it | list }}
{% set it = [1, 2] | select %}{{ it | list | length }}{% for x in it %}x{% endfor %}
{{ [1, 2] | map('string') | map('upper') | join }}|{{ [[1, 2], [3, 4]] | map('first') | list }}|{{ [{'a': {'b': [5]}}] | map(attribute='a.b.0') | list }}
{% macro p(type) %}{% if type is string %}{{ type }}{% elif type is iterable and type is not mapping %}{{ type | join(' | ') }}{% else %}any{% endif %}{% endmacro %}{{ p('a') }},{{ p(['a', 'b']) }},{{ p({}) }},{{ p(none) }}
{% macro r(s, depth=0) %}{% if s.type == 'object' %}{ {%- for k, v in s.properties.items() %}{{ k }}: {{ r(v, depth + 1) }}, {% endfor -%} }{% elif s.type == 'array' %}[{{ r(s['items'], depth + 1) }}]{% else %}{{ s.type }}{{ depth }}{% endif %}{% endmacro %}{{ r(tools[0].function.parameters) }}
{{ "line one\nline two" }}|{{ 'tab\there' }}|{{ "quote \" and ' " }}|{{ 'uni \u4e16' }}|{{ "back\\slash" }}
{{ '<|im_start|>' + messages[0].role + '\n' + messages[0].content + '<|im_end|>' }}
{{ {'role': 'x'} | tojson }}{{ {'role': 'x'}.role }}{{ {'role': 'x'}['role'] }}
{{ messages[2]['tool_calls'][0]['function']['arguments'] | string }}
{{ messages[2]['tool_calls'][0]['function'].arguments.items() | list }}
{% for a in messages[2].tool_calls[0].function.arguments | items %}{{ a[0] }}={{ a[1] | tojson if a[1] is not string else a[1] }} {% endfor %}
{{ 1 if none else 2 }}|{{ 1 if [] else 2 }}|{{ 1 if [0] else 2 }}|{{ 1 if 0.0 else 2 }}|{{ 1 if ' ' else 2 }}|{{ 1 if {} else 2 }}|{{ 1 if range(0) else 2 }}
{{ 5 if true }}{{ 5 if false }}|{{ (5 if false) is defined }}|{{ (5 if false) | default('u') }}
{{ 'a,b;c'.replace(',', ';').split(';') | map('upper') | join('+') }}|{{ 'k=v'.split('=', 1)[1] }}|{{ 'ab'.upper().lower().title() }}
{{ ' '.join(s.split()) }}|{{ s.split()[-1] }}|{{ s.split() | length }}|{{ 'a  b'.split(' ') }}
{{ u.upper() }}|{{ u.encode is callable }}|{{ 'ß'.upper() }}|{{ 'İ'.lower() | length }}
{{ 'x' * 3 ~ 'y' }}|{{ 2 * 'ab' ~ 1 }}|{{ ('-' * 10)[:3] }}|{{ '=' * s | length }}
'''.strip("\n")


# Constructs of several lines stand here; the others are one to a line.
LINES = [
    "{% for m in messages %}\r\n<|im_start|>{{ m.role }}\r\n{{ m.content }}<|im_end|>\r\n{% endfor %}\r\n<|im_start|>assistant\r\n",
    "{{ 'a\r\nb' }}\r\n\r\n", "a\rb\r\n", "{% if true %}\r\n  x\r\n{% endif %}\r\ny", "\n\n{{ n }}\n\n", "{{ n }}\n", "",
    "  {%- if true %}\n a\n  {%- endif %}\n", "{% if true -%}\n\n  a\n\n{%- endif %}b", "   {{ n }}\n   {% set q = 1 %}\n   {{ q }}\n",
    "a\n  {# c #}\nb\n  {#- c -#}\nc", "{% raw %}\n  {{ x }}\n{% endraw %}\nb", "x {% if true %} y {% endif %} z\n  {% if 1 %}{% if 2 %}\n w{% endif %}{% endif %}\n",
    "{% for x in [1, 2] -%}\n  {{ x }}\n{% endfor %}", "{% for x in [1, 2] %}\n  {{ x -}}\n{% endfor %}", "{%- macro m(a) -%}\n  {{- a -}}\n{%- endmacro -%}\n{{ m(1) }}\n{{ m(2) }}",
    "{% set x %}\n a\n{% endset %}\n[{{ x }}]", "{% call(x) none_such() %}{% endcall %}", "{{\n  'multi'\n  ~ 'line'\n}}", "{%\n  set x = 1\n%}\n{{ x }}",
    "\ufeff{{ n }}", "{% if true %}\n\t{% if true %}\n\t\ta\n\t{% endif %}\n{% endif %}\n", "{{ '{{ not }}' }} {{ '{% no %}' }} {{ '#}' }}",
    "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': {}}}}}", "{{ '}}' }}", "{% set x = '%}' %}{{ x }}", "} } % # {", "{ { x } }", "{{'a'}}{{-'b'-}} c",
    "a {{- ' b ' -}} c", "line\n{%- if true %} x{% endif %}\n", "{% if true %}a{% endif -%}\n\n b", "{% if n %}\n\n\na{% endif %}",
]


def main():
    env = environment()
    context = {"messages": MESSAGES, "tools": TOOLS, "documents": None, "add_generation_prompt": True} | VARIABLES

    def run(source, values):
        try:
            return {"text": env.from_string(source).render(**values)}
        except Exception as error:  # Whatever Jinja2 raises, the template is refused.
            return {"error": f"{type(error).__name__}: {error}"}

    constructs = [{"template": source} | run(source, context) for source in CONSTRUCTS.split("\n") + LINES]
    shapes = []
    for name, source in SHAPES.items():
        chats = []
        for chat in CHATS:
            values = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"} | chat
            chats.append(chat | run(source, values))
        shapes.append({"name": name, "template": source, "chats": chats})
    out = {"messages": MESSAGES, "tools": TOOLS, "variables": VARIABLES, "constructs": constructs, "shapes": shapes}
    with open(os.path.join(HERE, "jinja2.json"), "w") as file:
        json.dump(out, file, ensure_ascii=False, indent=0)
    errors = sum("error" in case for case in constructs)
    print(f"{len(constructs)} constructs, {errors} refused; {len(shapes)} shapes of {len(CHATS)} chats")


main()
