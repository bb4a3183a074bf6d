#include "model/text/chat.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/utf8.h"
#include "model/checkpoint/filemap.h"

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
    {.name = "chatml",
     .bos = "",
     .start = "",
     CHATML_TURN,
     .has = {"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
             "{% endfor %}{% if add_generation_prompt %}"},
     .lacks = {"system", "bos_token", "trim"}},
    {.name = "qwen2",
     .bos = "",
     .start = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
     CHATML_TURN,
     .has = {"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", "'<|im_end|>\n'",
             "{{ '<|im_start|>assistant\n' }}"},
     .lacks = {"vision", "think", "bos_token"}},
    {.name = "qwen2.5",
     .bos = "",
     .start = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
              "assistant.<|im_end|>\n",
     CHATML_TURN,
     .has = {"'<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
             "assistant.<|im_end|>\n'",
             "'<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n'",
             "{{- '<|im_start|>assistant\n' }}"},
     .lacks = {"vision", "think", "bos_token"}},
    {.name = "qwen3",
     .bos = "",
     .start = "",
     CHATML_TURN,
     .has = {"'<|im_start|>' + message.role + '\n' + ",
             "{{- '<|im_start|>assistant\n' }}\n    {%- if enable_thinking is defined and "
             "enable_thinking is false %}\n        {{- '<think>\n\n</think>\n\n' }}\n    {%- endif "
             "%}\n{%- endif %}"},
     .lacks = {"You are a", "{{- '<think>\n' }}", "vision"}},
    {.name = "llama3",
     .start = "",
     LLAMA_3_TURN,
     .has = {"'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
             "message['content'] | trim + '<|eot_id|>'",
             "bos_token + content"},
     .lacks = {"Today Date", "strftime_now", "You are"}},
    {.name = "llama3.1",
     .start = LLAMA_31_SYSTEM,
     LLAMA_3_TURN,
     .has = {"'Cutting Knowledge Date: December 2023\n'", "'Today Date: ' + date_string + '\n\n'",
             "set date_string = '26 Jul 2024'",
             "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
             "message['content'] | trim + '<|eot_id|>'"},
     .lacks = {"You are", "set system_message = 'C"}},
    {.name = "gemma",
     .bos = "<bos>",
     .start = "",
     .user = "<start_of_turn>user\n",
     .header = "<end_of_turn>\n<start_of_turn>model\n",
     .end = "<end_of_turn>\n",
     .stop = "<end_of_turn>",
     .trim = true,
     .has = {"{{ bos_token }}", "'<start_of_turn>' + role + '\n'", "| trim",
             "'<start_of_turn>model\n'"},
     .lacks = {"<start_function", "think", "You are"}},
    {.name = "mistral-v0.1",
     MISTRAL_TURN("[INST] ", " [/INST]", "</s> "),
     .has = {"{{ bos_token }}", "{{ '[INST] ' + message['content'] + ' [/INST]' }}",
             "{{ message['content'] + eos_token + ' ' }}"},
     .lacks = {"<<SYS>>", "default_system"}},
    {.name = "mistral-v0.2",
     MISTRAL_TURN("[INST] ", " [/INST]", "</s>"),
     .has = {"{{ bos_token }}", "{{ '[INST] ' + message['content'] + ' [/INST]' }}",
             "{{ message['content'] + eos_token}}"},
     .lacks = {"<<SYS>>", "default_system"}},
    {.name = "mistral-v1",
     MISTRAL_TURN(" [INST] ", " [/INST]", "</s>"),
     .has = {"bos_token }}", "' [INST] ' + message['content'] + ' [/INST]' }}",
             "' ' + message['content'] + eos_token"},
     .lacks = {"<<SYS>>", "default_system"}},
    {.name = "mistral-v3",
     MISTRAL_TURN("[INST] ", "[/INST]", "</s>"),
     .has = {"bos_token }}", "'[INST] ' + message['content'] + '[/INST]' }}",
             "' ' + message['content']"},
     .lacks = {"<<SYS>>", "default_system"}},
    {.name = "mistral-tekken",
     MISTRAL_TURN("[INST]", "[/INST]", "</s>"),
     .has = {"bos_token }}", "'[INST]' + message['content'] + '[/INST]' }}",
             " message['content'] + eos_token"},
     .lacks = {"<<SYS>>", "default_system", "' ' + message"}},
    {.name = "phi3",
     .bos = "",
     .start = "",
     .user = "<|user|>\n",
     .header = "<|end|>\n<|assistant|>\n",
     .end = "<|end|>\n",
     .stop = "<|end|>",
     .has = {"'<|user|>\n' + message['content'] + '<|end|>\n", "<|assistant|>\n'",
             "message['role'] == 'user'"},
     .lacks = {"bos_token", "trim", "You are", "<|im_"}},
    {.name = "phi4-mini",
     .bos = "",
     .start = "",
     .user = "<|user|>",
     .header = "<|end|><|assistant|>",
     .end = "<|end|>",
     .stop = "<|end|>",
     .has = {"{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}",
             "{{ '<|assistant|>' }}"},
     .lacks = {"bos_token", "You are", "Your name"}},
    {.name = "phi4",
     .bos = "",
     .start = "",
     .user = "<|im_start|>user<|im_sep|>",
     .header = "<|im_end|><|im_start|>assistant<|im_sep|>",
     .end = "<|im_end|>",
     .stop = "<|im_end|>",
     .has = {"'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>",
             "<|im_start|>assistant<|im_sep|>'", "'<|im_start|>system<|im_sep|>'"},
     .lacks = {"You are", "bos_token", "trim"}},
    {.name = "gpt-oss",
     .bos = "",
     .start = GPT_OSS_SYSTEM,
     .user = "<|start|>user<|message|>",
     .header = "<|end|><|start|>assistant",
     .end = "<|end|>",
     .stop = "<|return|>",
     .has = {"set model_identity = 'You are ChatGPT, a large language model trained by OpenAI.'",
             "'Current date: ' + strftime_now('%Y-%m-%d') + '\n\n'",
             "{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}",
             "{%- if add_generation_prompt -%}\n<|start|>assistant\n{%- endif -%}"}},
    {.name = "olmo2",
     .bos = "<|endoftext|>",
     .start = "",
     .user = "<|user|>\n",
     .header = "\n<|assistant|>\n",
     .end = "<|endoftext|>\n",
     .stop = "<|endoftext|>",
     .end_eos = true,
     .has = {"{{ bos_token }}", "'<|user|>\n' + message['content'] + '\n' }}",
             "'<|assistant|>\n'  + message['content'] + eos_token + '\n' }}",
             "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}"},
     .lacks = {"You are", "trim"}},
    {.name = "glm4",
     .bos = "",
     .start = "[gMASK]<sop>",
     .user = "<|user|>\n",
     .header = "<|assistant|>",
     .end = "",
     .stop = "<|user|>",
     .has = {"[gMASK]<sop>{% for item in messages %}",
             "<|{{ item['role'] }}|>{{ item['metadata'] }}\n{{ item['content'] }}",
             "{% if add_generation_prompt %}<|assistant|>{% endif %}"}},
    {.name = "deepseek-v2",
     .bos = DEEPSEEK_BOS,
     .start = "",
     .user = "User: ",
     .header = "\n\nAssistant:",
     .end = DEEPSEEK_EOS,
     .stop = DEEPSEEK_EOS,
     .end_eos = true,
     .has = {"{{ bos_token }}", "{{ 'User: ' + message['content'] + '\n\n' }}",
             "{{ 'Assistant: ' + message['content'] + eos_token }}", "{{ 'Assistant:' }}"}},
    {.name = "deepseek-v3",
     .bos = DEEPSEEK_BOS,
     .start = "",
     .user = "<｜User｜>",
     .header = "<｜Assistant｜>",
     .end = DEEPSEEK_EOS,
     .stop = DEEPSEEK_EOS,
     .end_eos = true,
     .has = {"{{bos_token}}{{ns.system_prompt}}", "{{'<｜User｜>' + message['content']}}",
             "and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}"},
     .lacks = {"think", "You are"}},
    {.name = "deepseek-r1",
     .bos = DEEPSEEK_BOS,
     .start = "",
     .user = "<｜User｜>",
     .header = "<｜Assistant｜><think>\n",
     .end = DEEPSEEK_EOS,
     .stop = DEEPSEEK_EOS,
     .end_eos = true,
     .one_turn = true,
     .has = {"{{bos_token}}{{ns.system_prompt}}", "{{'<｜User｜>' + message['content']}}",
             "content = content.split('</think>')[-1]", "{{'<｜Assistant｜><think>\n'}}"},
     .lacks = {"is_last_user", "enable_thinking", "You are"}},
    {.name = "llama2",
     .bos = "<s>",
     .start = "",
     .user = "[INST] ",
     .header = " [/INST]",
     .end = " </s><s>",
     .stop = "</s>",
     .trim = true,
     .end_eos = true,
     .has = {"{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}",
             "content.strip() + ' ' + eos_token }}", "set system_message = false",
             "'<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content']"},
     .lacks = {"You are", "default_system", "USE_DEFAULT_PROMPT"}},
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

/* Makes chat templates comparable: unifies quotes, joins strings, replaces \n by a line feed. */
static void normalise(char *s)
{
    static const char joint[] = "' + '";
    char *to = s;
    for (char *t = s; *t; t++)
        *t = *t == '"' ? '\'' : *t;
    for (; *s; s++) {
        while (!strncmp(s, joint, sizeof joint - 1))
            s += sizeof joint - 1;
        const bool feed = *s == '\\' && s[1] == 'n';
        *to++ = feed ? '\n' : *s;
        s += feed;
    }
    *to = '\0';
}

/* Returns true if the template filters messages only by `trim`, and only if format *c trims them.
 * Filter `tojson` is ignored, because templates apply it to tool calls, which kvdim does not
 * use. */
static bool filters_fit(const kvd_chat *c, const char *text)
{
    static const char content[] = "content";
    for (const char *at = text; (at = strstr(at, content));) {
        at += sizeof content - 1;
        const char *filter = at + (strncmp(at, "']", 2) ? 0 : 2);
        filter += strspn(filter, " ");
        if (*filter != '|')
            continue;
        filter += 1 + strspn(filter + 1, " ");
        const size_t n = strcspn(filter, " |)}%\n");
        const bool trim = n == 4 && !strncmp(filter, "trim", n);
        if (trim ? !c->trim : n != 6 || strncmp(filter, "tojson", n) != 0)
            return false;
    }
    return true;
}

/* Returns true if the template has no text before its first and after its last Jinja tag, except,
 * at its beginning, the text with which format *c begins. */
static bool ends_fit(const kvd_chat *c, const char *text)
{
    size_t n;
    text += strspn(text, " \n");
    n = strlen(text);
    while (n && strchr(" \n", text[n - 1]))
        n--;
    return n && text[n - 1] == '}' &&
           (*text == '{' || (*c->start && !strncmp(text, c->start, strlen(c->start))));
}

static bool fits(const kvd_chat *c, const char *text)
{
    for (size_t i = 0; i < KVD_CHAT_MARKS; i++)
        if ((c->has[i] && !strstr(text, c->has[i])) || (c->lacks[i] && strstr(text, c->lacks[i])))
            return false;
    return ends_fit(c, text) && filters_fit(c, text);
}

const kvd_chat *kvd_chat_recognise(const char *template_text)
{
    char *const text = strdup(template_text);
    const kvd_chat *found = NULL;
    if (text)
        normalise(text);
    for (size_t i = 0; text && !found && i < N_FORMS; i++)
        found = fits(&forms[i], text) ? &forms[i] : NULL;
    free(text);
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
    const kvd_chat *const form = kvd_chat_recognise(template_text);
    if (!form) {
        kvd_fail(err,
                 "the chat template in '%s' has no form that kvdim knows: choose one with --chat "
                 "NAME, or --chat none",
                 path);
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
