/* Tests chat formats against the models' templates (tests/oracle/make_chat.py). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "model/text/chat.h"
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

static char *template_of(const json_t *form)
{
    char *text = strdup("{##}"), *whole;
    size_t i;
    json_t *part;
    json_array_foreach(json_object_get(form, "parts"), i, part)
    {
        char *longer;
        assert_true(asprintf(&longer, "%s\n%s", text, json_string_value(part)) > 0);
        free(text);
        text = longer;
    }
    assert_true(asprintf(&whole, "%s\n{##}\n", text) > 0);
    free(text);
    unit_at_end(free, whole);
    return whole;
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

TEST(similar_templates_are_unknown)
{
    size_t i, k;
    json_t *form, *part;
    json_array_foreach(json_object_get(fixture, "forms"), i, form)
    {
        char *const text = template_of(form), *more;
        const char *const name = text_of(form, "form");
        assert_non_null(kvd_chat_recognise(text));
        json_array_foreach(json_object_get(form, "parts"), k, part)
        {
            char *const cut = strdup(text), *const at = strstr(cut, json_string_value(part));
            assert_non_null(at);
            *at = '#';
            at[strlen(json_string_value(part)) - 1] = '#';
            const kvd_chat *const other = kvd_chat_recognise(cut);
            if (other && !strcmp(other->name, name))
                fail_msg("%s is recognised without part %zu", name, k);
            free(cut);
        }
        const kvd_chat *const c = named(name);
        for (k = 0; k < KVD_CHAT_MARKS && c->lacks[k]; k++) {
            assert_string_equal(
                c->lacks[k], json_string_value(json_array_get(json_object_get(form, "absent"), k)));
            assert_true(asprintf(&more, "%s%s", c->lacks[k], text) > 0);
            const kvd_chat *const other = kvd_chat_recognise(more);
            assert_true(!other || strcmp(other->name, name));
            free(more);
        }
        for (k = 0; k < 2; k++) { /* a text of its own at the beginning or end */
            assert_true(asprintf(&more, "%s%s%s", k ? "" : "Be brief. ", text, k ? "\nNow: " : "") >
                        0);
            assert_null(kvd_chat_recognise(more));
            free(more);
        }
        /* templates that change messages by another filter than the known chat format does */
        static const char *const filters[] = {"{{ message['content'] | upper }}",
                                              "{{ message.content|trim }}", "{{ content | trim }}"};
        for (k = c->trim ? 2 : 0; k < 3; k++) {
            assert_true(asprintf(&more, "%s%s", text, filters[c->trim ? 0 : k]) > 0);
            assert_null(kvd_chat_recognise(more));
            free(more);
        }
    }
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
