#include "formats/model_info.h"

#include <math.h>
#include <string.h>

#include "common/files/fields.h"

const char *kvd_model_info_rope(const kvd_model_info *m, bool before)
{
    return strcmp(m->rope_layout, "none") == 0 ? "none" : before ? "before" : "after";
}

const char kvd_random_weights_note[] =
    "random weights: times and memory are those of such a model, spectra and accuracies mean nothing";

bool kvd_model_info_random(const kvd_model_info *m)
{
    return strcmp(m->dtype, "random") == 0;
}

bool kvd_model_info_untrained(const kvd_model_info *m)
{
    return strcmp(m->dtype, "initial") == 0;
}

/* HDF5 attribute of group /model, and the field of kvd_model_info that has its value */
typedef struct {
    const char *name;
    size_t offset;
    size_t size; /* size of a string field in bytes; 0 for an integer field */
} field;

#define TEXT(f)                                                                                    \
    {                                                                                              \
#f, offsetof(kvd_model_info, f), sizeof(((kvd_model_info *)0)->f)                          \
    }
#define WHOLE(f)                                                                                   \
    {                                                                                              \
#f, offsetof(kvd_model_info, f), 0                                                         \
    }
static const field fields[] = {TEXT(name),           TEXT(hash),        TEXT(family),
                               WHOLE(n_layers),      WHOLE(n_heads),    WHOLE(n_kv_heads),
                               WHOLE(d_head),        WHOLE(d_model),    WHOLE(vocab_size),
                               WHOLE(max_positions), TEXT(rope_layout), TEXT(dtype)};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static const char *text_of(const kvd_model_info *m, const field *f)
{
    return (const char *)m + f->offset;
}

static int whole_of(const kvd_model_info *m, const field *f)
{
    int value;
    memcpy(&value, (const char *)m + f->offset, sizeof value);
    return value;
}

int kvd_model_info_write(kvd_h5 *f, const kvd_model_info *m, kvd_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].size
                ? kvd_h5_put_text(f, "/model", fields[i].name, text_of(m, &fields[i]), err)
                : kvd_h5_put_int(f, "/model", fields[i].name, whole_of(m, &fields[i]), err))
            return -1;
    return kvd_h5_put_double(f, "/model", "rope_theta", m->rope_theta, err);
}

static int read_field(kvd_h5 *f, const field *d, kvd_model_info *m, kvd_err *err)
{
    char *to = (char *)m + d->offset;
    if (d->size)
        return kvd_field_text(f, "/model", d->name, to, d->size, err);
    int64_t value;
    const int64_t limit =
        strcmp(d->name, "vocab_size") && strcmp(d->name, "max_positions") ? 999999 : 1 << 30;
    if (kvd_field_int(f, "/model", d->name, 1, limit, &value, err))
        return -1;
    const int whole = (int)value;
    memcpy(to, &whole, sizeof whole);
    return 0;
}

int kvd_model_info_read(kvd_h5 *f, kvd_model_info *m, kvd_err *err)
{
    memset(m, 0, sizeof *m);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (read_field(f, &fields[i], m, err))
            return -1;
    if (kvd_h5_get_double(f, "/model", "rope_theta", &m->rope_theta, err))
        return -1;
    if (!isfinite(m->rope_theta) || m->rope_theta < 0)
        return kvd_fail(err, "'%s': /model rope_theta is %g", f->path, m->rope_theta);
    if (m->n_heads % m->n_kv_heads)
        return kvd_fail(err, "'%s': /model has %d heads, not a multiple of %d KV heads", f->path,
                        m->n_heads, m->n_kv_heads);
    return 0;
}

int kvd_model_info_same(const kvd_model_info *a, const char *file_a, const kvd_model_info *b,
                        const char *file_b, kvd_err *err)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        const field *f = &fields[i];
        if (!strcmp(f->name, "name"))
            /* Ignores the names of the two models, because a checkpoint's folder may have been
             * renamed. */
            continue;
        if (f->size && strcmp(text_of(a, f), text_of(b, f)))
            return kvd_fail(err, "'%s' and '%s' are of different models: %s is %s and %s", file_a,
                            file_b, f->name, text_of(a, f), text_of(b, f));
        if (!f->size && whole_of(a, f) != whole_of(b, f))
            return kvd_fail(err, "'%s' and '%s' are of different models: %s is %d and %d", file_a,
                            file_b, f->name, whole_of(a, f), whole_of(b, f));
    }
    if (a->rope_theta < b->rope_theta || a->rope_theta > b->rope_theta)
        return kvd_fail(err, "'%s' and '%s' are of different models: rope_theta is %g and %g",
                        file_a, file_b, a->rope_theta, b->rope_theta);
    return 0;
}

int kvd_named_texts_agree(const kvd_named_text *a, const kvd_named_text *b, kvd_err *err)
{
    if (strcmp(a->label, b->label) || !a->label[0] || !a->hash[0] || !b->hash[0])
        return 0;
    if (kvd_corpus_hash_begins_differently(a->hash, b->hash))
        return kvd_fail(err,
                        "label '%s' names two texts that begin differently: %s in '%s' and %s in "
                        "'%s'; give one of them another --label",
                        a->label, a->hash, a->path, b->hash, b->path);
    if (a->n_tokens != b->n_tokens || (a->seq_len && b->seq_len && a->seq_len != b->seq_len) ||
        kvd_corpus_hash_same(a->hash, b->hash))
        return 0;
    return kvd_fail(err,
                    "label '%s' names two contents of %zu tokens: %s in '%s' and %s in '%s'; give "
                    "one of them another --label",
                    a->label, a->n_tokens, a->hash, a->path, b->hash, b->path);
}
