/* Fuzzes the reader of GGUF files: every accepted tensor must be readable, every token must have a
 * text. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "model/checkpoint/gguf.h"
#include "model/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_tensor(const kvd_tensor *t, const uint8_t *bytes, size_t len)
{
    const uint8_t *data = t->data;
    float x;
    if (data < bytes || data > bytes + len ||
        kvd_tensor_bytes(t, t->n) > (size_t)(bytes + len - data))
        abort();
    kvd_tensor_read(t, t->n - 1, 1, &x);
}

static void check_tokenizer(const uint8_t *bytes, size_t len)
{
    static const char text[] = "ab a<s>b  \xc3\xa4 A";
    kvd_err err;
    kvd_ids ids = {0};
    kvd_tokenizer *t = kvd_tokenizer_parse("input", bytes, len, 0, &err);
    if (t && kvd_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &err) == 0) {
        size_t n;
        char *back = kvd_tokenizer_decode(t, ids.id, ids.n, true, &n, &err);
        if (!back)
            abort();
        free(back);
    }
    kvd_ids_release(&ids);
    kvd_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    kvd_err err;
    kvd_config c;
    kvd_tensor t;
    kvd_gguf *g = kvd_gguf_parse("input", bytes, len, &err);
    for (size_t i = 0; g && i < kvd_gguf_count(g); i++) {
        if (kvd_gguf_find(g, kvd_gguf_name(g, i)) != i)
            abort();
        if (kvd_gguf_tensor(g, i, &t, &err) == 0)
            check_tensor(&t, bytes, len);
    }
    kvd_gguf_close(g);
    kvd_gguf_model *m = kvd_gguf_model_parse("input", bytes, len, &c, &err);
    for (size_t i = 0; m && i < kvd_gguf_model_count(m); i++) {
        const int status = kvd_gguf_model_find(m, kvd_gguf_model_name(m, i), &t, &err);
        if (status > 0)
            abort();
        if (!status && t.order == KVD_ROWS_IN_ORDER)
            check_tensor(&t, bytes, len);
    }
    kvd_gguf_model_close(m);
    if (len >= 4 && bytes[0] == 'G' && bytes[1] == 'G')
        check_tokenizer(bytes, len);
    return 0;
}
