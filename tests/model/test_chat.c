/* Tests chat formats against the models' templates (tests/oracle/make_chat.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "model/text/chat.h"
#include "model/text/jinja.h"
#include "temp_folder.h"
#include "unit.h"

static json_t *fixture;

static const char *text_of(const json_t *x, const char *field)
{
    return json_string_value(json_object_get(x, field));
}

static const kvd_chat *named(const char *name)
{
    for (int i = 2; kvd_chat_words[i]; i++)
        if (!strcmp(kvd_chat_words[i], name))
            return kvd_chat_form(i);
    return NULL;
}

static void put(const char *name, const char *text)
{
    remove(temp_file(name));
    if (text)
        unit_write_text(temp_file(name), text);
}

static void put_config(json_t *config)
{
    char *const text = json_dumps(config, 0);
    assert_non_null(text);
    put("tokenizer_config.json", text);
    free(text);
    json_decref(config);
}

/* Returns a Jinja template for the chat format named in *form. The text is freed at the end of the
 * test. */
static char *template_of(const json_t *form)
{
    const kvd_chat *const c = named(text_of(form, "form"));
    char *text;
    assert_true(
        asprintf(&text,
                 "{#- %s #}{{ '%s' }}{%%- for m in messages %%}{%% if m['role'] == 'user' -%%}"
                 "{{- '%s' if loop.first else '%s' }}{{ '%s' ~ m['content']%s }}{{ '%s' }}"
                 "{%%- elif m.role == \"assistant\" -%%}{{ '%s' + m.content }}{%% endif %%}"
                 "{%% endfor %%}\n",
                 c->mark ? c->mark : "", c->bos, c->start, c->end, c->user,
                 c->trim ? " | trim" : "", c->header, c->head ? c->head : "") > 0);
    unit_at_end(free, text);
    return text;
}

static char *render(const kvd_chat *c, const json_t *form, size_t n)
{
    char *text = strdup("");
    for (size_t t = 0; t < n; t++) {
        const kvd_chat_pieces p = kvd_chat_around(
            c, json_string_value(json_array_get(json_object_get(fixture, "users"), t)), t == 0);
        const char *const answer =
            t + 1 < n ? json_string_value(json_array_get(json_object_get(form, "answers"), t)) : "";
        char *longer;
        assert_true(asprintf(&longer, "%s%s%s%s%.*s%s%s", text, p.before[0], p.before[1],
                             p.before[2], (int)p.len, p.text, p.after, answer) > 0);
        free(text);
        text = longer;
    }
    unit_at_end(free, text);
    return text;
}

TEST(forms_as_published_templates)
{
    size_t i, n_words = 0;
    json_t *form;
    while (kvd_chat_words[n_words])
        n_words++;
    assert_int_equal(json_array_size(json_object_get(fixture, "forms")), n_words - 2);
    assert_null(kvd_chat_form(KVD_CHAT_NONE));
    assert_null(kvd_chat_form(KVD_CHAT_AUTO));
    json_array_foreach(json_object_get(fixture, "forms"), i, form)
    {
        const kvd_chat *const c = named(text_of(form, "form"));
        assert_non_null(c);
        assert_string_equal(c->name, text_of(form, "form"));
        char *const one = render(c, form, 1), *const three = render(c, form, 3);
        assert_string_equal(one, text_of(form, "one"));
        if (c->one_turn)
            assert_string_not_equal(three, text_of(form, "three"));
        else
            assert_string_equal(three, text_of(form, "three"));
    }
}

TEST(no_form_leaves_the_text)
{
    const kvd_chat_pieces p = kvd_chat_around(NULL, " a \n", true);
    assert_int_equal(p.len, 4);
    assert_string_equal(p.text, " a \n");
    assert_string_equal(p.before[0], "");
    assert_string_equal(p.before[1], "");
    assert_string_equal(p.before[2], "");
    assert_string_equal(p.after, "");
    const kvd_chat_pieces space = kvd_chat_around(named("gemma"), " \n\t", true);
    assert_int_equal(space.len, 0);
}

static void expect(const char *form, const char *file)
{
    kvd_err err = {""};
    char *path;
    const kvd_chat *const c = kvd_chat_read(temp_folder(), &path, &err);
    if (!c)
        fail_msg("%s: %s", form, err.msg);
    assert_string_equal(c->name, form);
    assert_non_null(strstr(path, file));
    free(path);
}

static void refused(const char *text, const char *other)
{
    kvd_err err = {""};
    char *path;
    assert_null(kvd_chat_read(temp_folder(), &path, &err));
    assert_null(path);
    if (!strstr(err.msg, text) || !strstr(err.msg, other))
        fail_msg("'%s' has not '%s' and '%s'", err.msg, text, other);
}

static json_t *config_of(const json_t *form, json_t *chat_template)
{
    const char *const bos = text_of(form, "bos"), *const eos = text_of(form, "eos");
    return json_pack("{s:o, s:s*, s:{s:s, s:b}}", "chat_template", chat_template, "bos_token", bos,
                     "eos_token", "content", eos, "special", 1);
}

TEST(recognised_in_files)
{
    size_t i;
    json_t *form;
    json_array_foreach(json_object_get(fixture, "forms"), i, form)
    {
        const char *const name = text_of(form, "form");
        char *const text = template_of(form);
        put_config(config_of(form, json_string(text)));
        expect(name, "tokenizer_config.json");
        put_config(
            config_of(form, json_pack("[{s:s, s:s}, {s:s, s:s}]", "name", "tool_use", "template",
                                      "x", "name", "default", "template", text)));
        expect(name, "tokenizer_config.json");
        put_config(config_of(form, json_string("x")));
        put("chat_template.jinja", text);
        expect(name, "chat_template.jinja");
        put("tokenizer_config.json", NULL);
        expect(name, "chat_template.jinja");
        put("chat_template.jinja", NULL);
    }
}

static bool is_form(const char *text, const char *name)
{
    kvd_err err = {""};
    const kvd_chat *const c = kvd_chat_recognise(text, &err);
    assert_true(c || *err.msg);
    return c && !strcmp(c->name, name);
}

/* Returns a template with `from` replaced by `to`, allocated until the end of the test. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *const at = strstr(text, from);
    char *more;
    assert_non_null(at);
    assert_true(asprintf(&more, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from)) > 0);
    unit_at_end(free, more);
    return more;
}

TEST(edited_templates_are_unknown)
{
    static const char *const edits[][2] = {
        {"== 'user'", "== 'human'"},                          /* another role */
        {"{{ '", "Be brief. {{ '"},                           /* text before the first tag */
        {"{% endfor %}", "{% endfor %} Now:"},                /* text after the last tag */
        {"m['content']", "m['content'] | upper"},             /* filters */
        {"m['content']", "m['content'] | replace('z', 's')"}, /* of a rare letter */
        {"m['content']", "m['content'][:4000]"},              /* a limit of length */
        {"in messages", "in messages[::-1]"},                 /* another order */
        {"in messages", "in messages[-9:]"},                  /* old messages left out */
        {"+ m.content", "~ m.content | trim"},                /* answers without white space */
        {"+ m.content", "+ m.content.split('</think>')[-1]"}, /* or reasoning */
        {"{%- for", "{% if messages | length > 1 %}!{% endif %}{%- for"},
        {"{%- for", "{{ '' | unknown }}{%- for"}, /* an unknown filter */
        {"{%- for", "{{ raise_exception('no') }}{%- for"},
        {"{% endfor %}", ""},
        {"{%- elif", "{{ eos_token }}{{ bos_token }}{%- elif"},
    };
    size_t i, k;
    json_t *form;
    json_array_foreach(json_object_get(fixture, "forms"), i, form)
    {
        char *const text = template_of(form);
        const char *const name = text_of(form, "form");
        const kvd_chat *const c = named(name);
        if (!is_form(text, name))
            fail_msg("%s is not recognised", name);
        for (k = 0; k < sizeof edits / sizeof *edits; k++) {
            /* Some edits of the template change nothing in conversations of one turn, so they
             * cannot be detected. */
            if (c->one_turn && k >= 6 && k <= 10)
                continue;
            /* This chat format cannot show if a template removes white space around answers, or
             * removes reasoning. */
            if ((k == 8 && (c->trim || c->mark)) || (k == 9 && c->mark))
                continue;
            if (is_form(edited(text, edits[k][0], edits[k][1]), name))
                fail_msg("%s is recognised with edit %zu", name, k);
        }
        if (!c->trim)
            assert_false(is_form(edited(text, "m['content']", "m['content'] | trim"), name));
        /* These edits of the template do not change the text of conversations, so the chat format
         * must still be recognised. */
        assert_true(
            is_form(edited(text, "{%- for",
                           "{% if tools %}{{ tools | tojson }}{% endif %}{%- set x = 1 -%}{%- for"),
                    name));
        assert_true(is_form(edited(text, "m['content']", "(m . content)"), name));
        if (c->mark)
            assert_true(is_form(edited(text, c->mark, ""), "chatml"));
    }
}

/* Expected texts come from jinja2 3.1.6 with the settings of tests/oracle/make_chat.py. NULL: the
 * template must fail. The messages are "Hi", "Yes" and " Bye". */
TEST(templates_run_as_in_jinja2)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"a\n{% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
        {"x {{- ' a ' -}}  \n y{{ 1 }}", "x a y1"},
        {"{%- if false -%} a {%- elif 1 == 1 +%}\n b {% else %}c{% endif %}", "\n b "},
        {"  {# note {{ x }} #}\n  {%+ if true %} {{ 'a' 'b' }}{% endif %}", "   ab"},
        {"{{ messages[0].role ~ messages[-1]['content'][1:] ~ 7 // 2 ~ -7 % 3 ~ none ~ t"
         "rue }}",
         "userBye32NoneTrue"},
        {"{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop."
         "revindex0 }}{{ m.role }}{% if m.role == 'assistant' %}{% continue %}{% endif %"
         "}!{% endfor %}",
         "1TrueFalse2user!2FalseFalse1assistant3FalseTrue0user!"},
        {"{% for m in messages if m.role != 'user' %}{{ loop.length }}{{ m.content }}{% "
         "else %}none{% endfor %}{% for x in [] %}{% else %}empty{% endfor %}",
         "1Yesempty"},
        {"{% set ns = namespace(n=0, s='') %}{% for i in range(5) %}{% if i == 3 %}{% br"
         "eak %}{% endif %}{% set ns.n = ns.n + i %}{% set y = i %}{% endfor %}{{ ns.n }"
         "}{{ y is defined }}",
         "3False"},
        {"{% macro f(a, b='B') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(b=2, "
         "a='x') | upper }}",
         "1BX2"},
        {"{% set c %}<{{ messages | length }}>{% endset %}{{ c | trim }}", "<3>"},
        {"{{ 'a' if messages is string else 'b' }}{{ missing.x if missing is defined }}{"
         "{ (1, 2)[1] }}{{ {'k': 'v'}.k }}{{ {'k': 'v'}.get('z', 'w') }}",
         "b2vw"},
        {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}{{ [3, 4"
         "] | join('-') }}{{ missing | default('d') }}{{ '' | default('e', true) }}",
         "a=1;b=2;3-4de"},
        {"{{ ' \\t a\n'.strip() }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'a,b,c'.split(',')[-1] }"
         "}|{{ 'abc'.replace('b', 'é') }}|{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith("
         "'b') }}",
         "a|axx|c|aéc|TrueFalse"},
        {"{{ 1 < 2 and not 2 <= 1 or missing }}{{ 'a' in 'cat' }}{{ 'x' not in ['x'] }}{"
         "{ 'role' in messages[0] }}{{ 1 < 2 < 3 }}{{ true == 1 }}{{ none is none }}{{ 3"
         " is odd }}",
         "TrueTrueFalseTrueTrueTrueTrueTrue"},
        {"{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}{% for m in messages[1"
         ":] %}{{ m.role }}{% endfor %}{{ '你好'[1] }}{{ messages[5] is defined }}",
         "uauassistantuser好False"},
        {"{% if messages[0].role == 'user' and messages[0].tool_calls is not defined %}{"
         "{ 'a\\tb\\'c' ~ \"d\" }}{% endif %}{% for i in [1, 2] %}{% for j in [1, 2] %}{"
         "{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
         "a\tb'cd121122"},
        {"{{ raise_exception('no') }}", NULL},
        {"{{ missing.x }}", NULL},
        {"{{ 'a' + 1 }}", NULL},
        {"{% if true %}a", NULL},
        {"{{ 'a' }", NULL},
        {"{% for x in none %}{% endfor %}", NULL},
        {"{{ f() }}", NULL},
        {"{{ 1 + }}", NULL},
        {"{{ 'a' | nofilter }}", NULL},
        {"{% endif %}", NULL},
        {"{{ ('a' | trim)[0] }}{{ 'a' | trim [0] }}", NULL},
        {"{{ messages.append(1) }}", NULL},
        {"{% set messages.x = 1 %}", NULL},
        {"{{ 'a' 1 }}", NULL},
        {"{% if true %}{% else %}{% elif true %}{% endif %}", NULL},
        {"{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1].content }}"
         "{{ messages | rejectattr('role', 'eq', 'user') | list | length }}"
         "{{ messages | selectattr('tool') | list | length }}",
         " Bye10"},
        {"{{ strftime_now('%Y-%m-%d') }}", "2025-08-05"},
        /* templates beyond the limits of kvdim's Jinja implementation, such as its number of loop
         * iterations */
        {"{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}",
         NULL},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", NULL},
        {"{% set n = namespace(a=[], b=[]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
         "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
         NULL},
        {"{% set n = namespace(a=[], b=[]) %}{% for i in range(9000) %}{% set n.a = [n.a] %}"
         "{% set n.b = [n.b] %}{% endfor %}{{ n.a in [n.b] }}",
         NULL},
        {"{% set n = namespace(x=[1]) %}{% for i in range(24) %}{% set n.x = n.x + n.x %}"
         "{% endfor %}{{ n.x | length }}",
         NULL},
        {"{% set n = namespace(s='ab') %}{% for i in range(20) %}{% set n.s = n.s ~ n.s %}"
         "{% endfor %}{% for i in range(500) %}{% set x = n.s ~ i %}{% endfor %}",
         NULL},
        {"{% set n = namespace(s='ab') %}{% for i in range(19) %}{% set n.s = n.s ~ n.s %}"
         "{% endfor %}{% for i in range(5000) %}{% if 'x' in n.s %}{% endif %}{% endfor %}",
         NULL},
        {"{% set a = namespace() %}{% set b = namespace() %}{% set a.x = [a] %}{% set b.x = [b] %}"
         "{{ a == b }}{{ a == a }}{{ a in b.x }}{{ [[1], {'k': a}] == [[true], {'k': a}] }}"
         "{{ [1, 2] == [1] }}{{ {'k': 1} == {'l': 1} }}{{ [missing] == [1] }}",
         "FalseTrueFalseTrueFalseFalseFalse"},
        {"{{ 99999999999999999999 }}", NULL},
        {"{{ 1.5 }}", NULL},
        {"{{ '\\d' }}", NULL},
        {"{{ messages | tojson }}", NULL},
        {"{{ messages }}", NULL},
    };
    json_t *const names =
        json_pack("{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}], s:s}", "messages", "role", "user",
                  "content", "Hi", "role", "assistant", "content", "Yes", "role", "user", "content",
                  " Bye", "strftime_now", "2025-08-05");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvd_err err = {""};
        char *const text = kvd_jinja_render(cases[i].text, names, &err);
        if (!text != !cases[i].expected || (text && strcmp(text, cases[i].expected)))
            fail_msg("%s: '%s', '%s'", cases[i].text, text ? text : "NULL", err.msg);
        free(text);
    }
    char deep[4000] = "{{ ";
    memset(deep + 3, '(', sizeof deep - 4);
    kvd_err err = {""};
    assert_null(kvd_jinja_render(deep, names, &err));
    json_decref(names);
}

TEST(refusals)
{
    kvd_err err = {""};
    char *path, pipe[300];
    refused("neither chat_template.jinja nor tokenizer_config.json", "--chat NAME");
    put("tokenizer_config.json", "{\"model_max_length\": 1000000000000000019884624838656}");
    refused("tokenizer_config.json' has no chat_template", "--chat none");
    put("tokenizer_config.json", "{\"chat_template\": \"{{ messages }}\"}");
    refused("tokenizer_config.json' has no form that kvdim knows", "--chat NAME");
    put("tokenizer_config.json", "{\"chat_template\": \n \"{{ messages }");
    refused("tokenizer_config.json' is no JSON object", "line 2");
    put("tokenizer_config.json", "[1]");
    refused("tokenizer_config.json' is no JSON object", "");
    put("tokenizer_config.json", "{\"chat_template\": 3}");
    refused("tokenizer_config.json': chat_template is neither a string nor a list", "");
    put("tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}, 3]}");
    refused("chat_template is a list without a text named 'default'", "--chat none");
    put("tokenizer_config.json", "{\"bos_token\": \"<s>\",\n\"bos_token\": \"\"}");
    refused("tokenizer_config.json' is no JSON object", "line 2: duplicate object key");
    put("tokenizer_config.json", NULL);
    snprintf(pipe, sizeof pipe, "%s/tokenizer_config.json", temp_folder());
    assert_int_equal(mkfifo(pipe, 0600), 0);
    refused("tokenizer_config.json' is special, not a regular file", "");
    put("tokenizer_config.json", "{}");
    put("chat_template.jinja", "{{ messages }}");
    refused("chat_template.jinja' has no form that kvdim knows", "--chat NAME");
    put("chat_template.jinja", "");
    refused("chat_template.jinja' is empty", "");
    put("chat_template.jinja", NULL);
    const json_t *const olmo = json_array_get(json_object_get(fixture, "forms"), 16);
    char *const text = template_of(olmo);
    assert_string_equal(text_of(olmo, "form"), "olmo2");
    put_config(json_pack("{s:s, s:s}", "chat_template", text, "bos_token", "<s>"));
    refused("bos_token is '<s>', but '<|endoftext|>' in the chat form olmo2", "--chat none");
    put_config(json_pack("{s:s, s:s}", "chat_template", text, "eos_token", "</s>"));
    refused("eos_token is '</s>', but '<|endoftext|>' in the chat form olmo2", "--chat none");
    put("tokenizer_config.json", NULL);
    assert_null(kvd_chat_read("tests/data/chat.json", &path, &err));
    SAYS("'tests/data/chat.json' is no folder");
}

static int set_up(void **state)
{
    json_error_t why;
    (void)state;
    fixture = json_load_file("tests/data/chat.json", 0, &why);
    return fixture ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    json_decref(fixture);
    return 0;
}

TEST_MAIN(set_up, tear_down)
