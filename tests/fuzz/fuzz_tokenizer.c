/* Fuzzes tokenizers. Input: tokenizer file, byte 0xff, text to encode. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
