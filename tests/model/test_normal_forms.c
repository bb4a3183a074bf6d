/* Compares Unicode normal forms with the output of Hugging Face's tokenizers, stored by
 * tests/oracle/make_tokenizers.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"
#include "model/text/tokenizer/steps.h"
#include "unit.h"

static uint64_t fnv(uint64_t h, const kvd_buffer *text)
{
    for (size_t i = 0; i < text->n; i++)
        h = (h ^ (unsigned char)text->s[i]) * 0x100000001b3;
    return h;
}

static void put(kvd_buffer *text, uint32_t c)
{
    kvd_err err;
    char utf8[4];
    OK(kvd_buffer_add(text, utf8, kvd_utf8_encode(c, utf8), &err));
}

/* Writes the normalised form of a test text to `text`.
 *
 * - lower: if true, the test text is c, and the result is "" if c does not change; if false, c
 *   appears twice, each time followed by a combining mark */
static void result(const kvd_normalizer *n, bool lower, uint32_t c, kvd_buffer *text,
                   kvd_buffer *scratch)
{
    const uint32_t mixed[] = {'a', c, 0x334, 'e', c, 0x301};
    kvd_err err = {""};
    char before[4];
    text->n = 0;
    if (!lower) {
        for (int i = 0; i < 6; i++)
            put(text, mixed[i]);
        OK(kvd_normalizer_apply(n, text, scratch, NULL, false, &err));
        return;
    }
    put(text, c);
    const size_t size = text->n;
    memcpy(before, text->s, size);
    if (kvd_normalizer_apply(n, text, scratch, NULL, false, &err) ||
        (text->n == size && !memcmp(text->s, before, size)))
        text->n = 0;
}

static void check(const char *name, const json_t *blocks)
{
    kvd_err err = {""};
    json_t *const spec = json_pack("{s:s}", "type", name);
    kvd_normalizer *const n = kvd_normalizer_parse(spec, &err);
    kvd_buffer text = {0}, scratch = {0};
    const char *key;
    json_t *value;
    size_t seen = 0;
    assert_non_null(n);
    json_object_foreach((json_t *)blocks, key, value)
    {
        const uint32_t first = (uint32_t)strtoul(key, NULL, 16);
        const uint32_t from = first == 0x2f000 ? 0x2f800 : first,
                       to = first == 0x2f000 ? 0x2fa20 : first + 0x1000;
        uint64_t h = 0xcbf29ce484222325;
        char hash[17];
        for (uint32_t c = from; c < to; c++)
            if (c < 0xd800 || c >= 0xe000) {
                result(n, !strcmp(name, "Lowercase"), c, &text, &scratch);
                h = fnv(h, &text);
            }
        (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)h);
        if (strcmp(hash, json_string_value(value)))
            fail_msg("%s of characters from U+%s", name, key);
        seen++;
    }
    /* The test data have one hash of normalised text for each of 33 ranges of characters. */
    assert_int_equal(seen, 33);
    kvd_buffer_release(&text);
    kvd_buffer_release(&scratch);
    kvd_normalizer_free(n);
    json_decref(spec);
}

TEST(test_every_character)
{
    json_error_t why;
    json_t *const all = json_load_file("tests/data/tokenizers/normal_forms.json", 0, &why);
    const char *name;
    json_t *blocks;
    assert_non_null(all);
    assert_int_equal(json_object_size(all), 5);
    json_object_foreach(all, name, blocks)
    {
        check(name, blocks);
    }
    json_decref(all);
}

TEST(test_many_marks)
{
    enum { N = 100000 };
    kvd_err err = {""};
    json_t *const spec = json_pack("{s:s}", "type", "NFD");
    kvd_normalizer *const n = kvd_normalizer_parse(spec, &err);
    kvd_buffer text = {0}, scratch = {0};
    put(&text, 'a');
    for (int i = 0; i < N; i++)
        put(&text, i < N / 2 ? 0x301 : 0x334);
    OK(kvd_normalizer_apply(n, &text, &scratch, NULL, false, &err));
    assert_int_equal(text.n, 1 + 2 * N);
    assert_memory_equal(text.s + 1, "\xcc\xb4", 2);
    assert_memory_equal(text.s + text.n - 2, "\xcc\x81", 2);
    kvd_buffer_release(&text);
    kvd_buffer_release(&scratch);
    kvd_normalizer_free(n);
    json_decref(spec);
}

TEST_MAIN(NULL, NULL)
