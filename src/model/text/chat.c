#include "model/text/chat.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/utf8.h"
#include "model/checkpoint/filemap.h"
#include "model/text/jinja.h"

/* system message of Llama 3.1, with its default date */
#define LLAMA_31_SYSTEM                                                                            \
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"        \
    "Today Date: 26 Jul 2024\n\n<|eot_id|>"
/* system message of gpt-oss, with the model's release date */
#define GPT_OSS_SYSTEM                                                                             \
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"       \
    "Knowledge cutoff: 2024-06\nCurrent date: 2025-08-05\n\nReasoning: medium\n\n"                 \
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."   \
    "<|end|>"
#define CHATML_TURN                                                                                \
    .user = "<|im_start|>user\n", .header = "<|im_end|>\n<|im_start|>assistant\n",                 \
    .end = "<|im_end|>\n", .stop = "<|im_end|>"
#define LLAMA_3_TURN                                                                               \
    .bos = "<|begin_of_text|>", .user = "<|start_header_id|>user<|end_header_id|>\n\n",            \
    .header = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", .end = "<|eot_id|>",  \
    .stop = "<|eot_id|>", .trim = true
#define MISTRAL_TURN(u, h, e)                                                                      \
    .bos = "<s>", .start = "", .user = u, .header = h, .end = e, .stop = "</s>", .end_eos = true
#define DEEPSEEK_EOS "<｜end▁of▁sentence｜>"
#define DEEPSEEK_BOS "<｜begin▁of▁sentence｜>"

static const kvd_chat forms[] = {
    {.name = "chatml", .bos = "", .start = "", CHATML_TURN},
    {.name = "qwen2",
     .bos = "",
     .start = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
     CHATML_TURN},
    {.name = "qwen2.5",
     .bos = "",
     .start = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
              "assistant.<|im_end|>\n",
     CHATML_TURN},
    {.name = "qwen3", .bos = "", .start = "", CHATML_TURN, .mark = "enable_thinking"},
    {.name = "llama3", .start = "", LLAMA_3_TURN},
    {.name = "llama3.1", .start = LLAMA_31_SYSTEM, LLAMA_3_TURN},
    {.name = "gemma",
     .bos = "<bos>",
     .start = "",
     .user = "<start_of_turn>user\n",
     .header = "<end_of_turn>\n<start_of_turn>model\n",
     .end = "<end_of_turn>\n",
     .stop = "<end_of_turn>",
     .trim = true},
    {.name = "mistral-v0.1", MISTRAL_TURN("[INST] ", " [/INST]", "</s> ")},
    {.name = "mistral-v0.2", MISTRAL_TURN("[INST] ", " [/INST]", "</s>")},
    {.name = "mistral-v1", MISTRAL_TURN(" [INST] ", " [/INST]", "</s>"), .head = " "},
    {.name = "mistral-v3", MISTRAL_TURN("[INST] ", "[/INST]", "</s>"), .head = " "},
    {.name = "mistral-tekken", MISTRAL_TURN("[INST]", "[/INST]", "</s>")},
    {.name = "phi3",
     .bos = "",
     .start = "",
     .user = "<|user|>\n",
     .header = "<|end|>\n<|assistant|>\n",
     .end = "<|end|>\n",
     .stop = "<|end|>"},
    {.name = "phi4-mini",
     .bos = "",
     .start = "",
     .user = "<|user|>",
     .header = "<|end|><|assistant|>",
     .end = "<|end|>",
     .stop = "<|end|>"},
    {.name = "phi4",
     .bos = "",
     .start = "",
     .user = "<|im_start|>user<|im_sep|>",
     .header = "<|im_end|><|im_start|>assistant<|im_sep|>",
     .end = "<|im_end|>",
     .stop = "<|im_end|>"},
    {.name = "gpt-oss",
     .bos = "",
     .start = GPT_OSS_SYSTEM,
     .user = "<|start|>user<|message|>",
     .header = "<|end|><|start|>assistant",
     .head = "<|channel|>final<|message|>",
     .end = "<|end|>",
     .stop = "<|return|>"},
    {.name = "olmo2",
     .bos = "<|endoftext|>",
     .start = "",
     .user = "<|user|>\n",
     .header = "\n<|assistant|>\n",
     .end = "<|endoftext|>\n",
     .stop = "<|endoftext|>",
     .end_eos = true},
    {.name = "glm4",
     .bos = "",
     .start = "[gMASK]<sop>",
     .user = "<|user|>\n",
     .header = "<|assistant|>",
     .head = "\n",
     .end = "",
     .stop = "<|user|>"},
    {.name = "deepseek-v2",
     .bos = DEEPSEEK_BOS,
     .start = "",
     .user = "User: ",
     .header = "\n\nAssistant:",
     .head = " ",
     .end = DEEPSEEK_EOS,
     .stop = DEEPSEEK_EOS,
     .end_eos = true},
    {.name = "deepseek-v3",
     .bos = DEEPSEEK_BOS,
     .start = "",
     .user = "<｜User｜>",
     .header = "<｜Assistant｜>",
     .end = DEEPSEEK_EOS,
     .stop = DEEPSEEK_EOS,
     .end_eos = true},
    {.name = "deepseek-r1",
     .bos = DEEPSEEK_BOS,
     .start = "",
     .user = "<｜User｜>",
     .header = "<｜Assistant｜><think>\n",
     .end = DEEPSEEK_EOS,
     .stop = DEEPSEEK_EOS,
     .end_eos = true,
     .one_turn = true},
    {.name = "llama2",
     .bos = "<s>",
     .start = "",
     .user = "[INST] ",
     .header = " [/INST]",
     .head = " ",
     .end = " </s><s>",
     .stop = "</s>",
     .trim = true,
     .end_eos = true},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

const char *const kvd_chat_words[] = {
    "none",         "auto",        "chatml",      "qwen2",          "qwen2.5",
    "qwen3",        "llama3",      "llama3.1",    "gemma",          "mistral-v0.1",
    "mistral-v0.2", "mistral-v1",  "mistral-v3",  "mistral-tekken", "phi3",
    "phi4-mini",    "phi4",        "gpt-oss",     "olmo2",          "glm4",
    "deepseek-v2",  "deepseek-v3", "deepseek-r1", "llama2",         NULL};
_Static_assert(sizeof kvd_chat_words / sizeof *kvd_chat_words == N_FORMS + 3,
               "kvd_chat_words names every form");

const kvd_chat *kvd_chat_form(int word)
{
    return word > KVD_CHAT_AUTO && word < N_FORMS + 2 ? &forms[word - 2] : NULL;
}

/* Appends n bytes of `more` to *text, unless *text is NULL. If memory runs out, frees *text and
 * sets it to NULL. */
static void append(char **text, const char *more, size_t n)
{
    const size_t had = *text ? strlen(*text) : 0;
    char *const longer = *text ? realloc(*text, had + n + 1) : NULL;
    if (!longer)
        free(*text);
    else {
        memcpy(longer + had, more, n);
        longer[had + n] = '\0';
    }
    *text = longer;
}

enum { N_PROBES = 7 };
/* user messages for tests of chat templates, chosen so that a template that trims, escapes,
 * shortens or compares messages is noticed */
static const char *const probe_users[N_PROBES] = {
    "\t!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz"
    "{|}~\r\n\r\n{{ x }}{% y %} \u00c4\u00e9\u4f60\u597d \U0001f600",
    " \n What is 6 * 7? \"It's\" 42, <b>I&#39;d</b> SAY: \\n \u2003",
    "And  that\n\n twice? \n",
    "0",
    "assistant",
    "system user [INST] tool true false none None",
    "\n\nThank you\u00a0"};
#define PROBE_REASONING "<think>\nHm.\n</think>\n\n"
#define PROBE_ANSWER    "It is 42,\n\n  is it NOT? \u00c4\u4f60: {'a': [1.5, \"b\"]}"

/* Returns a test answer that templates of this chat format print unchanged. */
static const char *answer_for(const kvd_chat *c)
{
    return c->mark   ? PROBE_ANSWER
           : c->trim ? PROBE_REASONING PROBE_ANSWER
                     : " \n" PROBE_REASONING PROBE_ANSWER "\t\n";
}

/* Returns a test conversation of `n` user messages and the answers between them. text [n] receives
 * the user messages; the last message is very long. */
static json_t *probe(const kvd_chat *c, size_t n, char *text[N_PROBES])
{
    json_t *const messages = json_array();
    for (size_t t = 0; t < n; t++) {
        text[t] = strdup("");
        for (int k = t + 1 == n ? 200 : 1; k > 0; k--)
            append(&text[t], probe_users[t], strlen(probe_users[t]));
        json_array_append_new(messages,
                              json_pack("{s:s, s:s*}", "role", "user", "content", text[t]));
        if (t + 1 < n)
            json_array_append_new(
                messages, json_pack("{s:s, s:s}", "role", "assistant", "content", answer_for(c)));
    }
    return messages;
}

/* Returns the text that chat format *c makes from a test conversation with the `n` user messages
 * `text`. */
static char *written(const kvd_chat *c, char *const *text, size_t n)
{
    char *s = strdup("");
    for (size_t t = 0; t < n; t++) {
        const kvd_chat_pieces p = kvd_chat_around(c, text[t], t == 0);
        for (int i = 0; i < 3; i++)
            append(&s, p.before[i], strlen(p.before[i]));
        append(&s, p.text, p.len);
        append(&s, p.after, strlen(p.after));
        if (t + 1 < n && c->head)
            append(&s, c->head, strlen(c->head));
        if (t + 1 < n)
            append(&s, answer_for(c), strlen(answer_for(c)));
    }
    return s;
}

/* Returns the variables that Transformers passes to a chat template. */
static json_t *names_for(const kvd_chat *c, json_t *messages, bool dated)
{
    /* text of each special token that chat format *c does not use */
    static const char other[] = "<|another special token|>";
    return json_pack("{s:O, s:b, s:n, s:n, s:s, s:s, s:s, s:s, s:s*}", "messages", messages,
                     "add_generation_prompt", 1, "tools", "documents", "bos_token",
                     *c->bos ? c->bos : other, "eos_token", c->end_eos ? c->stop : other,
                     "pad_token", other, "unk_token", other, "strftime_now",
                     dated ? "2025-08-05" : NULL);
}

/* Returns 1 if the template and chat format *c write the same text for a test conversation of `n`
 * user messages, else 0. Returns -1 with *err if the template cannot be run. */
static int writes_as(const kvd_chat *c, const char *template_text, size_t n, kvd_err *err)
{
    char *text[N_PROBES] = {NULL}, *made = NULL;
    json_t *const messages = probe(c, n, text);
    bool whole = messages && json_array_size(messages) == 2 * n - 1;
    for (size_t t = 0; t < n; t++)
        whole &= text[t] != NULL;
    if (!whole)
        kvd_no_memory(err, "a conversation to run a chat template on",
                      200 * strlen(probe_users[n - 1]));
    /* Passes a date to the template only if it fails without a date. Llama's template has its own
     * default date. */
    for (int dated = 0; whole && !made && dated < 2; dated++) {
        json_t *const names = names_for(c, messages, dated);
        made = kvd_jinja_render(template_text, names, err);
        json_decref(names);
    }
    char *const expected = whole ? written(c, text, n) : NULL;
    const int same = made ? expected && !strcmp(made, expected) : -1;
    json_decref(messages);
    for (size_t t = 0; t < N_PROBES; t++)
        free(text[t]);
    free(made);
    free(expected);
    return same;
}

const kvd_chat *kvd_chat_recognise(const char *template_text, kvd_err *err)
{
    static const size_t turns[] = {1, 2, 3, N_PROBES};
    enum { N_LENGTHS = sizeof turns / sizeof *turns };
    const kvd_chat *found = NULL;
    bool ran = false;
    for (size_t i = 0; i < N_FORMS; i++) {
        const size_t n = forms[i].one_turn ? 1 : N_LENGTHS;
        size_t k = 0;
        for (int same = 1; k < n && same > 0; k += same > 0) {
            same = writes_as(&forms[i], template_text, turns[k], err);
            ran |= same >= 0;
        }
        if (k == n && (!forms[i].mark || strstr(template_text, forms[i].mark)))
            found = &forms[i];
    }
    if (!found && ran)
        kvd_fail(err, "it writes conversations in no form that kvdim knows");
    return found;
}

static bool is_folder(const char *path)
{
    struct stat s;
    return !stat(path, &s) && S_ISDIR(s.st_mode);
}

static bool exists(const char *path)
{
    struct stat s;
    return !stat(path, &s);
}

static char *read_text(const char *path, kvd_err *err)
{
    kvd_filemap map;
    char *text = NULL;
    if (kvd_filemap_load(&map, path, err))
        return NULL;
    if (!map.len || memchr(map.bytes, '\0', map.len))
        kvd_fail(err, "'%s' is empty or is no text", path);
    else if (!(text = strndup(map.bytes, map.len)))
        kvd_no_memory(err, "a chat template", map.len);
    kvd_filemap_release(&map);
    return text;
}

/* Returns the chat template in tokenizer_config.json, or NULL with a message in *err. */
static const char *template_of(const json_t *root, const char *path, kvd_err *err)
{
    const json_t *x = json_object_get(root, "chat_template"), *entry;
    size_t i;
    if (!x)
        kvd_fail(err, "'%s' has no chat_template: choose a form with --chat NAME, or --chat none",
                 path);
    else if (json_is_array(x)) {
        const json_t *const all = x;
        x = NULL;
        json_array_foreach(all, i, entry)
        {
            const char *const name = json_string_value(json_object_get(entry, "name"));
            if (name && !strcmp(name, "default"))
                x = json_object_get(entry, "template");
        }
        if (!json_is_string(x))
            kvd_fail(err,
                     "'%s': chat_template is a list without a text named 'default': choose a "
                     "form with --chat NAME, or --chat none",
                     path);
    } else if (!json_is_string(x))
        kvd_fail(err, "'%s': chat_template is neither a string nor a list", path);
    return json_string_value(x);
}

static int check_token(const json_t *root, const char *field, const char *wanted,
                       const kvd_chat *form, const char *path, kvd_err *err)
{
    const json_t *const x = json_object_get(root, field);
    const char *const text =
        json_string_value(json_is_object(x) ? json_object_get(x, "content") : x);
    return text && strcmp(text, wanted)
               ? kvd_fail(err, "'%s': %s is '%.40s', but '%s' in the chat form %s: use --chat none",
                          path, field, text, wanted, form->name)
               : 0;
}

static const kvd_chat *form_of(const json_t *root, const char *template_text, const char *path,
                               const char *config, kvd_err *err)
{
    kvd_err why = {""};
    const kvd_chat *const form = kvd_chat_recognise(template_text, &why);
    if (!form) {
        kvd_fail(err,
                 "the chat template in '%s' has no form that kvdim knows (%s): choose one with "
                 "--chat NAME, or --chat none",
                 path, why.msg);
        return NULL;
    }
    if ((*form->bos && check_token(root, "bos_token", form->bos, form, config, err)) ||
        (form->end_eos && check_token(root, "eos_token", form->stop, form, config, err)))
        return NULL;
    return form;
}

static json_t *load(const char *path, kvd_err *err)
{
    json_error_t where;
    kvd_filemap map;
    if (kvd_filemap_load(&map, path, err))
        return NULL;
    /* Reads integers as reals, because model_max_length is often 10^30. */
    json_t *const root =
        json_loadb(map.bytes, map.len, JSON_DECODE_INT_AS_REAL | JSON_REJECT_DUPLICATES, &where);
    kvd_filemap_release(&map);
    if (root && json_is_object(root))
        return root;
    kvd_fail(err, "'%s' is no JSON object: line %d: %s", path, where.line,
             root ? "another value" : where.text);
    json_decref(root);
    return NULL;
}

const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err)
{
    char *jinja = NULL, *config = NULL, *text = NULL;
    json_t *root = NULL;
    const kvd_chat *form = NULL;
    *path = NULL;
    if (!is_folder(folder)) {
        kvd_fail(err, "'%s' is no folder, and --chat auto reads the files of one: use --chat NAME",
                 folder);
        return NULL;
    }
    if (asprintf(&jinja, "%s/chat_template.jinja", folder) < 0 ||
        asprintf(&config, "%s/tokenizer_config.json", folder) < 0) {
        kvd_no_memory(err, "a path", strlen(folder));
        return NULL;
    }
    const bool own_file = exists(jinja);
    if (!own_file && !exists(config))
        kvd_fail(err,
                 "'%s' has neither chat_template.jinja nor tokenizer_config.json: use --chat "
                 "NAME, or --chat none",
                 folder);
    else if (!exists(config) || (root = load(config, err))) {
        const char *const read =
            own_file ? text = read_text(jinja, err) : template_of(root, config, err);
        form = read ? form_of(root, read, own_file ? jinja : config, config, err) : NULL;
    }
    if (form) {
        *path = own_file ? jinja : config;
        free(own_file ? config : jinja);
    } else {
        free(jinja);
        free(config);
    }
    free(text);
    json_decref(root);
    return form;
}

/* Returns true for white space that Python's str.strip removes. */
static bool is_space(const char *s)
{
    unsigned width;
    const uint32_t c = kvd_utf8_decode(s, &width);
    return kvd_utf8_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first)
{
    kvd_chat_pieces p = {{"", "", ""}, text, strlen(text), ""};
    if (!c)
        return p;
    while (c->trim && p.len && is_space(p.text)) {
        const unsigned width = kvd_utf8_width(*p.text);
        p.text += width;
        p.len -= width;
    }
    for (size_t before; c->trim && p.len; p.len = before)
        if (!is_space(p.text + (before = kvd_utf8_before(p.text, p.len))))
            break;
    p.before[0] = first ? c->bos : "";
    p.before[1] = first ? c->start : c->end;
    p.before[2] = c->user;
    p.after = c->header;
    return p;
}
