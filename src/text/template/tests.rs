use serde_json::json;

use super::*;

fn render_with(source: &str, request: &ChatRequest) -> Result<String, TextError> {
    let vocabulary = Vocabulary {
        tokens: vec!["<s>".to_owned(), "</s>".to_owned()],
        bos: Some(0),
        eos: Some(1),
        ..Vocabulary::default()
    };
    Ok(ChatTemplate::new(source, &vocabulary)?.render(request)?.text().to_owned())
}

fn render(source: &str) -> Result<String, TextError> {
    let messages = vec![json!({"role": "user", "content": " Hi "}), json!({"role": "assistant", "content": null})];
    let request = ChatRequest {
        tools: vec![json!({"b": 1, "a": [true, null, 1.0, 1e-7, 1e20, "é<\"\n"], "e": [], "f": {}})],
        variables: json!({"enable_thinking": false}).as_object().unwrap().clone(),
        ..ChatRequest::new(messages, Moment::from_unix(1_732_891_445))
    };
    render_with(source, &request)
}

#[test]
fn json_is_spaced_as_python_does() {
    assert_eq!(
        render("{{ tools | tojson }}").unwrap(),
        r#"[{"b": 1, "a": [true, null, 1.0, 1e-07, 1e+20, "é<\"\n"], "e": [], "f": {}}]"#
    );
    assert_eq!(
        render("{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}").unwrap(),
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
    );
    assert_eq!(render("{{ 'é🙂\u{1}' | tojson(ensure_ascii=true) }}").unwrap(), r#""\u00e9\ud83d\ude42\u0001""#);
    assert!(matches!(render("{{ 1 | tojson(wrong=1) }}"), Err(TextError::TemplateFailed { .. })));
}

#[test]
fn values_print_as_python_does() {
    assert_eq!(
        render("{{ enable_thinking }} {{ messages[1].content }} {{ 1.0 }} {{ 3 }} {{ nothing }}|").unwrap(),
        "False None 1.0 3 |"
    );
    assert_eq!(
        render("{{ tools }}").unwrap(),
        r#"[{'b': 1, 'a': [True, None, 1.0, 1e-07, 1e+20, 'é<"\n'], 'e': [], 'f': {}}]"#
    );
    assert_eq!(render("{{ [\"it's\", 'a\\'\"'] }}").unwrap(), r#"["it's", 'a\'"']"#);
}

#[test]
fn python_methods_and_slices_work() {
    let source = "{% set m = messages[0] %}{{ m['content'].strip() }}{{ m.content.startswith(' ') }}\
        {{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}{% for k, v in {'x': 1}.items() %}{{ k }}={{ v }}{% endfor %}\
        {% for m in messages[::-1] %}{{ m.role }}{% endfor %}{% set ns = namespace(n=0) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}\
        {% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}";
    assert_eq!(render(source).unwrap(), "HiTruebx=1assistantuser101");
}

#[test]
fn blocks_are_trimmed_and_tokens_are_known() {
    let source = "{{ bos_token }}\n  {% if true %}\n  a\n  {% endif %}\n{{ eos_token }}{{ unk_token }}\n";
    assert_eq!(render(source).unwrap(), "<s>\n  a\n</s>");
}

#[test]
fn generation_marks_change_nothing() {
    assert_eq!(
        render("a {%- generation -%} b {% endgeneration %}c{{ '%}' }}{% if 1 %}d{% endif %}").unwrap(),
        "ab cd".replace('c', "c%}")
    );
}

#[test]
fn the_clock_is_the_callers() {
    assert_eq!(render("{{ strftime_now('%d %b %Y') }}").unwrap(), "29 Nov 2024");
}

#[test]
fn a_refusal_has_the_templates_words() {
    let source = "{% macro f() %}{{ raise_exception('Roles must alternate!') }}{% endmacro %}{{ f() }}";
    assert_eq!(render(source), Err(TextError::TemplateRaised { message: "Roles must alternate!".to_owned() }));
}

#[test]
fn failures_name_the_line() {
    let syntax = render("a\n{% if %}").unwrap_err();
    assert!(matches!(syntax, TextError::TemplateSyntax { line: 2, .. }), "{syntax}");
    let unknown = render("a\n\n{{ no_such_function() }}").unwrap_err();
    assert!(matches!(unknown, TextError::TemplateFailed { line: 3, .. }), "{unknown}");
    assert!(unknown.to_string().contains("no_such_function"), "{unknown}");
    let undefined = render("{{ messages[0].a.b }}").unwrap_err();
    assert!(matches!(undefined, TextError::TemplateFailed { line: 1, .. }), "{undefined}");
}

#[test]
fn a_template_without_end_is_stopped() {
    let source = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    assert_eq!(render(source), Err(TextError::TemplateEndless { steps: FUEL }));
}

#[test]
fn a_model_without_a_template_says_so() {
    assert_eq!(ChatTemplate::of(&Vocabulary::default()).unwrap_err(), TextError::NoTemplate);
}
