#include "model/text/tokenizer.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/run.h"
#include "common/utf8.h"
#include "model/checkpoint/filemap.h"
#include "model/text/tokenizer/json_fields.h"
#include "model/text/tokenizer/steps.h"

/* buffers of one call of encode, kept for later calls */
typedef struct {
    kvd_pieces pieces;
    kvd_bpe_work *bpe;
    kvd_ids ids;
} encode_work;

#define N_IDLE 16

struct kvd_tokenizer {
    char *name;
    /* llama2.c's tokenizer; if NULL, the members below are used */
    kvd_llama2c *llama2c;
    kvd_normalizer *normalizer;
    kvd_pretokenizer *pretokenizer;
    kvd_bpe *bpe;
    kvd_added_tokens *added;
    kvd_template around;
    kvd_token_decoder *decoder;
    size_t size;
    /* [N_IDLE] work buffers that no thread uses for encoding at the moment; elements may be NULL */
    _Atomic(encode_work *) *idle;
};

int kvd_ids_push(kvd_ids *ids, uint32_t id, kvd_err *err)
{
    if (ids->n >= ids->capacity) {
        if (kvd_grow(&ids->id, &ids->capacity, ids->n + 1, sizeof *ids->id, err))
            return -1;
    }
    ids->id[ids->n++] = id;
    return 0;
}

void kvd_ids_release(kvd_ids *ids)
{
    free(ids->id);
    memset(ids, 0, sizeof *ids);
}

int kvd_ids_append(kvd_ids *ids, const uint32_t *id, size_t n, kvd_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (kvd_ids_push(ids, id[i], err))
            return -1;
    return 0;
}

static void work_free(encode_work *w)
{
    if (!w)
        return;
    kvd_pieces_release(&w->pieces);
    kvd_bpe_work_free(w->bpe);
    kvd_ids_release(&w->ids);
    free(w);
}

static encode_work *work_take(const kvd_tokenizer *t, kvd_err *err)
{
    for (size_t i = 0; i < N_IDLE; i++) {
        encode_work *w = atomic_exchange(&t->idle[i], NULL);
        if (w)
            return w;
    }
    encode_work *w = kvd_new(1, sizeof *w, "encoding", err);
    if (!w)
        return NULL;
    w->bpe = kvd_bpe_work_new(t->bpe, err);
    if (!w->bpe) {
        work_free(w);
        return NULL;
    }
    return w;
}

static void work_give_back(const kvd_tokenizer *t, encode_work *w)
{
    /* Frees buffers that have grown beyond 4 MiB. */
    if (w->pieces.text.capacity > (size_t)4 << 20) {
        work_free(w);
        return;
    }
    for (size_t i = 0; w && i < N_IDLE; i++)
        w = atomic_exchange(&t->idle[i], w);
    work_free(w);
}

static int parse_json(kvd_tokenizer *t, const json_t *root, kvd_err *err)
{
    static const char *const must_be_null[] = {"truncation", "padding"};
    if (kvd_json_known(
            root, "top level",
            "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model",
            err))
        return -1;
    const json_t *version = json_object_get(root, "version");
    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0")))
        return kvd_fail(err, "field 'version' is not \"1.0\"");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(root, must_be_null[i]);
        if (v && !json_is_null(v))
            return kvd_fail(
                err, "field '%s' is set, which is not supported (ids would be cut or filled up)",
                must_be_null[i]);
    }
    const json_t *part[4];
    static const char *const names[] = {"normalizer", "pre_tokenizer", "post_processor", "decoder"};
    for (size_t i = 0; i < 4; i++) {
        part[i] = json_object_get(root, names[i]);
        part[i] = part[i] ? part[i] : json_null();
    }
    if (!json_object_get(root, "model"))
        return kvd_fail(err, "field 'model' is missing");
    if (!(t->normalizer = kvd_normalizer_parse(part[0], err)) ||
        !(t->pretokenizer = kvd_pretokenizer_parse(part[1], err)) ||
        !(t->bpe = kvd_bpe_parse(json_object_get(root, "model"),
                                 kvd_pretokenizer_byte_level(t->pretokenizer), err)))
        return -1;
    const kvd_vocab *vocab = kvd_bpe_vocab(t->bpe);
    if (!(t->added = kvd_added_tokens_parse(json_object_get(root, "added_tokens"), vocab,
                                            t->normalizer, err)) ||
        kvd_template_parse(part[2], &t->around, err) ||
        !(t->decoder = kvd_token_decoder_parse(part[3], err)))
        return -1;
    for (size_t i = 0; i < t->around.n; i++) {
        size_t len;
        bool special;
        const uint32_t id = t->around.part[i].id;
        if (!t->around.part[i].is_text && !kvd_vocab_piece(vocab, id, &len) &&
            !kvd_added_tokens_text(t->added, id, &len, &special))
            return kvd_fail(err, "post_processor: id %u is not in the vocabulary", id);
    }
    const size_t added_end = kvd_added_tokens_end(t->added), vocab_end = kvd_vocab_end(vocab);
    t->size = added_end > vocab_end ? added_end : vocab_end;
    return t->size ? 0 : kvd_fail(err, "the vocabulary is empty");
}

static bool is_gguf(const char *bytes, size_t len)
{
    return len >= 4 && memcmp(bytes, "GGUF", 4) == 0;
}

/* Reads a tokenizer.json and frees `root`. If `root` is NULL, *err already has a message, and -1 is
 * returned. */
static int parse_root(kvd_tokenizer *t, json_t *root, size_t vocab_size, kvd_err *err)
{
    if (!root)
        return -1;
    const int rc = parse_json(t, root, err);
    json_decref(root);
    if (!rc && vocab_size && t->size > vocab_size)
        return kvd_fail(err, "ids go up to %zu, the model's vocabulary has %zu", t->size - 1,
                        vocab_size);
    return rc;
}

static int parse_gguf(kvd_tokenizer *t, const char *bytes, size_t len, size_t vocab_size,
                      kvd_err *err)
{
    kvd_gguf *g = kvd_gguf_parse("metadata", bytes, len, err);
    if (!g)
        return -1;
    const int rc = parse_root(t, kvd_gguf_tokenizer(g, err), vocab_size, err);
    kvd_gguf_close(g);
    return rc;
}

static int parse(kvd_tokenizer *t, const char *bytes, size_t len, size_t vocab_size, kvd_err *err)
{
    size_t i = 0;
    if (is_gguf(bytes, len))
        return parse_gguf(t, bytes, len, vocab_size, err);
    while (i < len && (bytes[i] == ' ' || bytes[i] == '\t' || bytes[i] == '\n' || bytes[i] == '\r'))
        i++;
    /* true for JSON; a llama2.c binary may begin with '{' too, but has zero bytes */
    const bool is_json = i < len && bytes[i] == '{' && !(len - i >= 4 && memchr(bytes + i, 0, 4));
    if (!is_json && !vocab_size)
        return kvd_fail(
            err, "not JSON, and a llama2.c tokenizer needs the vocabulary size of its model");
    if (!is_json) {
        t->llama2c = kvd_llama2c_tok_parse(bytes, len, vocab_size, err);
        t->size = vocab_size;
        return t->llama2c ? 0 : -1;
    }
    json_error_t why;
    json_t *root = json_loadb(bytes, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!root)
        return kvd_fail(err, "not valid JSON: %s (line %d, byte %d)", why.text, why.line,
                        why.position);
    return parse_root(t, root, vocab_size, err);
}

kvd_tokenizer *kvd_tokenizer_parse(const char *name, const void *bytes, size_t len,
                                   size_t vocab_size, kvd_err *err)
{
    kvd_tokenizer *t = calloc(1, sizeof *t);
    if (t) {
        t->name = strdup(name);
        t->idle = calloc(N_IDLE, sizeof *t->idle);
    }
    if (!t || !t->name || !t->idle) {
        kvd_no_memory(err, "a tokenizer", sizeof *t);
        kvd_tokenizer_free(t);
        return NULL;
    }
    if (parse(t, bytes, len, vocab_size, err)) {
        kvd_in(err, "tokenizer '%s'", name);
        kvd_tokenizer_free(t);
        return NULL;
    }
    return t;
}

static kvd_tokenizer *open_gguf(const char *path, size_t vocab_size, kvd_err *err)
{
    kvd_filemap map;
    if (kvd_filemap_load(&map, path, err))
        return NULL;
    kvd_tokenizer *t = kvd_tokenizer_parse(path, map.bytes, map.len, vocab_size, err);
    kvd_filemap_release(&map);
    return t;
}

kvd_tokenizer *kvd_tokenizer_open(const char *path, size_t vocab_size, kvd_err *err)
{
    kvd_tokenizer *t = NULL;
    kvd_buffer content = {0};
    char chunk[1 << 13];
    size_t n;
    FILE *f = kvd_run_open_input(path, err);
    if (!f)
        return NULL;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        if (!content.n && is_gguf(chunk, n)) {
            t = open_gguf(path, vocab_size, err);
            goto done;
        }
        if (kvd_buffer_add(&content, chunk, n, err))
            goto done;
    }
    if (ferror(f)) {
        kvd_fail_errno(err, "cannot read '%s'", path);
        goto done;
    }
    t = kvd_tokenizer_parse(path, content.s ? content.s : "", content.n, vocab_size, err);
done:
    kvd_buffer_release(&content);
    (void)fclose(f);
    return t;
}

void kvd_tokenizer_free(kvd_tokenizer *t)
{
    if (!t)
        return;
    for (size_t i = 0; t->idle && i < N_IDLE; i++)
        work_free(atomic_exchange(&t->idle[i], NULL));
    free(t->idle);
    kvd_llama2c_tok_free(t->llama2c);
    kvd_normalizer_free(t->normalizer);
    kvd_pretokenizer_free(t->pretokenizer);
    kvd_added_tokens_free(t->added);
    kvd_bpe_free(t->bpe);
    kvd_template_release(&t->around);
    kvd_token_decoder_free(t->decoder);
    free(t->name);
    free(t);
}

size_t kvd_tokenizer_size(const kvd_tokenizer *t)
{
    return t->size;
}

bool kvd_tokenizer_is_small(const kvd_tokenizer *t, size_t vocab_size, kvd_err *note)
{
    if (t->size >= vocab_size - vocab_size / 10)
        return false;
    (void)kvd_fail(note,
                   "tokenizer '%s' has %zu ids and the model's vocabulary %zu: is it the one that "
                   "the model was trained with?",
                   t->name, t->size, vocab_size);
    return true;
}

static int encode_json(const kvd_tokenizer *t, encode_work *w, const char *text, size_t len,
                       bool open, bool add_special, kvd_ids *ids, kvd_err *err)
{
    kvd_pieces *p = &w->pieces;
    w->ids.n = 0;
    if (kvd_pieces_start(p, text, len, open, err) ||
        kvd_added_tokens_split(t->added, false, p, err) ||
        kvd_normalizer_apply_pieces(t->normalizer, p, err) ||
        kvd_added_tokens_split(t->added, true, p, err) ||
        kvd_pretokenizer_apply(t->pretokenizer, p, err))
        return -1;
    for (size_t i = 0; i < p->n; i++) {
        const kvd_piece *piece = &p->piece[i];
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
        if (piece->is_id ? kvd_ids_push(&w->ids, piece->id, err)
                         : kvd_bpe_encode(t->bpe, w->bpe, p->text.s + piece->begin, piece->len,
                                          piece->open, &w->ids, err))
            return -1;
    }
    return kvd_template_apply(&t->around, &w->ids, open, add_special, ids, err);
}

static int encode(const kvd_tokenizer *t, const char *text, size_t len, bool open, bool add_special,
                  kvd_ids *ids, kvd_err *err)
{
    const size_t before = ids->n;
    const size_t bad = kvd_utf8_first_bad(text, len);
    int rc;
    if (open && bad < len && kvd_utf8_bad_width(text + bad, len - bad) == len - bad)
        /* Leaves out the last character, which later text may complete. */
        len = bad;
    if (bad < len)
        return kvd_fail(err, "text is not valid UTF-8 at byte %zu", bad);
    if (t->llama2c) {
        rc = kvd_llama2c_tok_encode(t->llama2c, text, len, open, add_special, ids, err);
    } else {
        encode_work *w = work_take(t, err);
        if (!w)
            return -1;
        rc = encode_json(t, w, text, len, open, add_special, ids, err);
        work_give_back(t, w);
    }
    if (rc) {
        ids->n = before;
        return kvd_in(err, "tokenizer '%s'", t->name);
    }
    return 0;
}

int kvd_tokenizer_encode(const kvd_tokenizer *t, const char *text, size_t len, bool add_special,
                         kvd_ids *ids, kvd_err *err)
{
    return encode(t, text, len, false, add_special, ids, err);
}

int kvd_tokenizer_encode_start(const kvd_tokenizer *t, const char *text, size_t len,
                               bool add_special, kvd_ids *ids, kvd_err *err)
{
    return encode(t, text, len, true, add_special, ids, err);
}

static int decode_json(const kvd_tokenizer *t, const uint32_t *id, size_t n, bool special,
                       kvd_buffer *out, kvd_err *err)
{
    kvd_strings strings = {0};
    int rc = -1;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        bool is_special = false;
        const char *s = kvd_added_tokens_text(t->added, id[i], &len, &is_special);
        if (is_special && !special)
            continue;
        if (!s)
            s = kvd_vocab_piece(kvd_bpe_vocab(t->bpe), id[i], &len);
        if (s && kvd_strings_add(&strings, s, len, err))
            goto done;
    }
    rc = kvd_token_decoder_apply(t->decoder, &strings, out, err);
done:
    kvd_strings_release(&strings);
    return rc;
}

char *kvd_tokenizer_decode(const kvd_tokenizer *t, const uint32_t *id, size_t n, bool special,
                           size_t *len, kvd_err *err)
{
    kvd_buffer out = {0};
    if (t->llama2c ? kvd_llama2c_tok_decode(t->llama2c, id, n, &out, err)
                   : decode_json(t, id, n, special, &out, err)) {
        kvd_in(err, "tokenizer '%s'", t->name);
        kvd_buffer_release(&out);
        return NULL;
    }
    if (kvd_buffer_add(&out, "", 1, err)) {
        kvd_buffer_release(&out);
        return NULL;
    }
    *len = out.n - 1;
    return out.s;
}
