#include "model/model_info.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/utf8.h"

static void set_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from ? from : "");
}

/* Returns the last component of `path` and its length *n. */
static const char *last_part(const char *path, size_t *n)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    *n = end - start;
    return path + start;
}

static bool is_dots(const char *name, size_t n)
{
    return name[0] == '.' && (n == 1 || (n == 2 && name[1] == '.'));
}

void kvd_model_info_set(kvd_model_info *m, const kvd_config *c, const char *path, const char *hash,
                        const char *dtype)
{
    size_t n;
    const char *name = last_part(path, &n);
    /* Absolute path if `path` ends in "." or "..", which hides the folder's name; otherwise NULL */
    char *const full = is_dots(name, n) ? realpath(path, NULL) : NULL;
    name = full ? last_part(full, &n) : name;
    memset(m, 0, sizeof *m);
    if (n >= sizeof m->name)
        n = kvd_utf8_first_bad(name, sizeof m->name - 1);
    memcpy(m->name, name, n);
    kvd_utf8_make_printable(m->name);
    free(full);
    set_text(m->hash, sizeof m->hash, hash);
    set_text(m->family, sizeof m->family, c->family);
    m->n_layers = c->n_layers;
    m->n_heads = c->n_heads;
    m->n_kv_heads = c->n_kv_heads;
    m->d_head = c->d_head;
    m->d_model = c->d_model;
    m->vocab_size = c->vocab_size;
    m->max_positions = c->max_positions;
    m->rope_theta = c->positions == KVD_POSITIONS_ROPE ? c->rope_theta : 0;
    set_text(m->rope_layout, sizeof m->rope_layout,
             c->positions != KVD_POSITIONS_ROPE       ? "none"
             : c->rope_layout == KVD_ROPE_INTERLEAVED ? "interleaved"
                                                      : "half");
    set_text(m->dtype, sizeof m->dtype, dtype);
}

kvd_tokenizer *kvd_model_tokenizer(const kvd_checkpoint *c, const char *program, kvd_err *err)
{
    const size_t vocab = (size_t)kvd_checkpoint_config(c)->vocab_size;
    char *const path = kvd_checkpoint_tokenizer_path(c, err);
    kvd_tokenizer *const tok = path ? kvd_tokenizer_open(path, vocab, err) : NULL;
    kvd_err note;
    free(path);
    if (tok && program && kvd_tokenizer_is_small(tok, vocab, &note))
        fprintf(stderr, "%s: warning: %s\n", program, note.msg);
    return tok;
}

kvd_corpus *kvd_model_corpus(const kvd_checkpoint *c, const kvd_corpus_spec *spec,
                             const char *program, kvd_err *err)
{
    kvd_tokenizer *const tok = spec->n_text ? kvd_model_tokenizer(c, program, err) : NULL;
    kvd_corpus *const corpus = tok || !spec->n_text ? kvd_corpus_open(spec, tok, err) : NULL;
    kvd_err note;
    kvd_tokenizer_free(tok);
    if (corpus && program && kvd_corpus_is_partial(corpus, spec->text, spec->n_text, &note))
        fprintf(stderr, "%s: warning: %s\n", program, note.msg);
    return corpus;
}

int kvd_model_seq_len(const kvd_config *model, size_t *seq_len, kvd_err *err)
{
    const size_t longest = (size_t)model->max_positions;
    if (!*seq_len)
        *seq_len = longest < 512 ? longest : 512;
    return *seq_len > longest
               ? kvd_fail(err, "--seq-len %zu: the model was made for at most %zu positions",
                          *seq_len, longest)
               : 0;
}
