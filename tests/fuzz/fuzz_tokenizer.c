/* Fuzzes tokenizers and chat templates. Input: tokenizer file, byte 0xff, text to encode; or a
 * template. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/jinja.h"
#include "model/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

static const char *const templates[] = {
    "{%- for m in messages if m.role != 'tool' -%}{{ loop.index0 ~ m['content'] | trim }}"
    "{% else %}x{% endfor +%}",
    "{% set n = namespace(a=[], s='x') %}{% for i in range(9) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.s = n.s ~ n.s %}{% if i == 7 %}{% break %}{% endif %}{% endfor %}"
    "{{ n.a == n.a[0] }}{{ n.s | length }}{{ n.s[::-1] }}",
    "{% macro f(a, b='B') %}{{ a }}{{ b | upper }}{% endmacro %}{{ f(1) }}{{ f(b=2, a='x') }}",
    "{% set c %}<{{ messages | selectattr('role', 'equalto', 'user') | list | length }}>"
    "{% endset %}{{- c.strip('<>').replace('1', 'y').split('y')[-1] }}",
    "{{ {'k': 'v'}.get('z', 'w') }}{% for k, v in {'a': 1}.items() %}{{ k }}{{ -v // 2 % 3 }}"
    "{% endfor %}{{ (1, 2)[1:] | join('-') }}{{ 'a' in 'cat' and not 1 <= 2 or x is defined }}",
    "{{ raise_exception('no') if messages[0]['role'] is string else bos_token }}{# note #}",
};

/* Replaces one input in 32 by a chat template from array `templates`. Then mutates the input. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    enum { N_TEMPLATES = sizeof templates / sizeof *templates, RATE = 32 };
    const char *const s = templates[seed / RATE % N_TEMPLATES];
    if (seed % RATE == 0 && strlen(s) <= most)
        memcpy(data, s, size = strlen(s));
    return LLVMFuzzerMutate(data, size, most);
}

/* Runs a chat template on a conversation. */
static void render(const uint8_t *data, size_t size)
{
    kvd_err err = {""};
    char *const text = strndup((const char *)data, size);
    json_t *const names =
        json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:s, s:b, s:n}", "messages", "role", "user",
                  "content", " H\u00e9 ", "role", "assistant", "content", "Yes", "bos_token", "<s>",
                  "add_generation_prompt", 1, "tools");
    char *const made = text ? kvd_jinja_render(text, names, &err) : NULL;
    if (text && !made == !*err.msg)
        abort();
    json_decref(names);
    free(made);
    free(text);
}

/* Aborts if encoding a prefix of the text gives ids other than the first ids of the whole text. */
static void check_starts(const kvd_tokenizer *t, const char *text, size_t len, const kvd_ids *ids)
{
    kvd_err err;
    kvd_ids start = {0};
    for (size_t cut = 0; cut < len; cut += len < 64 ? 1 : len / 7) {
        start.n = 0;
        if (kvd_tokenizer_encode_start(t, text, cut, true, &start, &err))
            continue;
        if (start.n > ids->n || (start.n && memcmp(start.id, ids->id, start.n * sizeof *start.id)))
            abort();
    }
    kvd_ids_release(&start);
}

static void use(const kvd_tokenizer *t, const char *text, size_t len)
{
    kvd_err err;
    kvd_ids ids = {0};
    const size_t n_ids = len / 4 < 64 ? len / 4 : 64;
    uint32_t some[64];
    size_t n;
    if (len > 4096)
        len = 4096;
    if (!kvd_tokenizer_encode(t, text, len, true, &ids, &err)) {
        for (size_t i = 0; i < ids.n; i++)
            if (ids.id[i] >= kvd_tokenizer_size(t))
                abort();
        char *back = kvd_tokenizer_decode(t, ids.id, ids.n, true, &n, &err);
        if (back && back[n])
            abort();
        free(back);
        check_starts(t, text, len, &ids);
    } else if (ids.n) {
        abort();
    }
    for (size_t i = 0; i < n_ids; i++)
        some[i] = (unsigned char)text[i];
    free(kvd_tokenizer_decode(t, some, n_ids, true, &n, &err));
    kvd_ids_release(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size ? memchr(data, 0xff, size) : NULL;
    const size_t file = cut ? (size_t)(cut - data) : size;
    const uint8_t *text = cut ? cut + 1 : data;
    const size_t len = cut ? size - file - 1 : size;
    kvd_err err;
    render(data, size);
    /* Reads the input as tokenizer.json (vocab_size 0), then as a llama2.c tokenizer of 5
     * tokens. */
    for (size_t vocab_size = 0; vocab_size <= 5; vocab_size += 5) {
        kvd_tokenizer *t =
            kvd_tokenizer_parse("fuzz", data, vocab_size ? size : file, vocab_size, &err);
        if (t)
            use(t, (const char *)text, len);
        kvd_tokenizer_free(t);
    }
    return 0;
}
