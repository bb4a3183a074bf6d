/* A model in a GGUF file, under the tensor names of Hugging Face files. */
#include "model/checkpoint/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "model/checkpoint/family.h"

typedef struct {
    char name[KVD_PART_NAME];
    size_t tensor;
    kvd_row_order order;
    /* true for a matrix [1][n], which GGUF files may store as a vector [n] */
    bool column;
    /* expert: index of the weight's expert in the tensor. n_experts: number of experts in the
     * tensor. Weights without experts have 0 in these fields. */
    size_t expert, n_experts;
} entry;

struct kvd_gguf_model {
    kvd_gguf *file;
    /* weights of the model, in the order of the tensors in the GGUF file */
    entry *entries;
    const entry **by_name;
    size_t n;
    size_t d_head, group, n_kv_heads;
};

static const struct {
    const char *name;
    kvd_part part;
    bool layer;
} parts[] = {
    {"attn_norm", KVD_PART_NORM_ATTENTION, true},
    {"attn_q", KVD_PART_Q, true},
    {"attn_k", KVD_PART_K, true},
    {"attn_v", KVD_PART_V, true},
    {"attn_qkv", KVD_PART_Q, true},
    {"attn_output", KVD_PART_O, true},
    {"attn_q_norm", KVD_PART_NORM_Q, true},
    {"attn_k_norm", KVD_PART_NORM_K, true},
    {"post_attention_norm", KVD_PART_NORM_O, true},
    {"post_ffw_norm", KVD_PART_NORM_DOWN, true},
    {"ffn_norm", KVD_PART_NORM_FFN, true},
    {"ffn_gate", KVD_PART_GATE, true},
    {"ffn_up", KVD_PART_UP, true},
    {"ffn_down", KVD_PART_DOWN, true},
    {"attn_sinks", KVD_PART_SINKS, true},
    {"ffn_gate_inp", KVD_PART_ROUTER, true},
    {"ffn_gate_exps", KVD_PART_EXPERT_GATE, true},
    {"ffn_up_exps", KVD_PART_EXPERT_UP, true},
    {"ffn_down_exps", KVD_PART_EXPERT_DOWN, true},
    {"ffn_gate_inp_shexp", KVD_PART_SHARED_SCALE, true},
    {"ffn_gate_shexp", KVD_PART_SHARED_GATE, true},
    {"ffn_up_shexp", KVD_PART_SHARED_UP, true},
    {"ffn_down_shexp", KVD_PART_SHARED_DOWN, true},
    {"token_embd", KVD_PART_EMBEDDING, false},
    {"output_norm", KVD_PART_NORM_FINAL, false},
    {"output", KVD_PART_HEAD, false},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

/* Finds the Falcon norm with this name: "attn_norm" is the norm of the feed-forward block,
 * "attn_norm_2" the norm of attention. */
static bool falcon_norm(const kvd_config *c, const char *name, kvd_part *part)
{
    if (strcmp(c->family, "falcon") != 0 || c->order != KVD_ORDER_PARALLEL || c->shared_norm)
        return false;
    *part = strcmp(name, "attn_norm") == 0 ? KVD_PART_NORM_FFN : KVD_PART_NORM_ATTENTION;
    return strcmp(name, "attn_norm") == 0 || strcmp(name, "attn_norm_2") == 0;
}

static bool find_part(const kvd_config *c, const char *name, bool layer, kvd_part *part)
{
    if (layer && falcon_norm(c, name, part))
        return true;
    if (layer && !strcmp(c->family, "gpt_oss") && !strcmp(name, "post_attention_norm")) {
        *part = KVD_PART_NORM_FFN;
        return true;
    }
    for (size_t i = 0; i < N_PARTS; i++)
        if (parts[i].layer == layer && strcmp(parts[i].name, name) == 0) {
            *part = parts[i].part;
            return true;
        }
    return false;
}

static bool split(const char *tensor, bool *layer, int *number, char part[KVD_GGUF_NAME],
                  bool *bias)
{
    const char *p = tensor;
    *number = 0;
    *layer = strncmp(p, "blk.", 4) == 0;
    if (*layer) {
        const char *const digits = p + 4;
        for (p = digits; *p >= '0' && *p <= '9' && p - digits < 8; p++)
            *number = *number * 10 + (*p - '0');
        if (p == digits || *p != '.' || (*digits == '0' && p - digits > 1))
            return false;
        p++;
    }
    const char *dot = strrchr(p, '.');
    if (!dot || dot == p || (strcmp(dot, ".weight") && strcmp(dot, ".bias")))
        return false;
    *bias = strcmp(dot, ".bias") == 0;
    memcpy(part, p, (size_t)(dot - p));
    part[dot - p] = '\0';
    return true;
}

static kvd_row_order order_of(const kvd_config *c, kvd_part part)
{
    if ((!strcmp(c->family, "llama") || !strcmp(c->family, "mixtral")) &&
        (part == KVD_PART_Q || part == KVD_PART_K))
        return KVD_ROWS_IN_PAIRS;
    return strcmp(c->family, "falcon") == 0 && part == KVD_PART_Q ? KVD_ROWS_IN_STACKS
                                                                  : KVD_ROWS_IN_ORDER;
}

/* Fills e[] with the Hugging Face names of the weights in a GGUF tensor, one per expert. Returns
 * the number of names. */
static size_t name_tensor(const kvd_config *c, const char *tensor, entry *e)
{
    char text[KVD_GGUF_NAME];
    bool layer, bias;
    int number;
    kvd_part part;
    kvd_place place;
    if (!split(tensor, &layer, &number, text, &bias) || !find_part(c, text, layer, &part) ||
        (layer && number >= c->n_layers))
        return 0;
    const size_t experts = part < KVD_N_PARTS ? 0 : (size_t)c->n_experts, n = experts ? experts : 1;
    for (size_t i = 0; i < n; i++) {
        if (!kvd_expert_place(c, part, bias, number, (int)i, &place))
            return 0;
        memcpy(e[i].name, place.name, sizeof e[i].name);
        e[i].order = order_of(c, part);
        e[i].column = part == KVD_PART_SHARED_SCALE;
        e[i].expert = i;
        e[i].n_experts = experts;
    }
    return n;
}

static int compare(const void *a, const void *b)
{
    const entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int name_order(const void *name, const void *p)
{
    const entry *const *e = p;
    return strcmp(name, (*e)->name);
}

static int name_all(kvd_gguf_model *m, const kvd_config *c, kvd_err *err)
{
    const size_t tensors = kvd_gguf_count(m->file),
                 count = tensors * (c->n_experts ? (size_t)c->n_experts : 1);
    m->entries = calloc(count + 1, sizeof *m->entries);
    m->by_name = calloc(count + 1, sizeof(*m->by_name));
    if (!m->entries || !m->by_name)
        return kvd_no_memory(err, "the tensors of a model", (count + 1) * sizeof *m->entries);
    for (size_t i = 0; i < tensors; i++) {
        const char *tensor = kvd_gguf_name(m->file, i);
        entry *e = &m->entries[m->n];
        if (kvd_gguf_is_setting(tensor))
            continue;
        const size_t n = name_tensor(c, tensor, e);
        if (n == 0)
            return kvd_fail(err, "tensor '%s' is not part of this %s model of %d layers", tensor,
                            c->family, c->n_layers);
        for (size_t k = 0; k < n; k++) {
            e[k].tensor = i;
            m->by_name[m->n++] = &e[k];
        }
    }
    if (m->n)
        qsort(m->by_name, m->n, sizeof(*m->by_name), compare);
    for (size_t i = 1; i < m->n; i++)
        if (compare(&m->by_name[i - 1], &m->by_name[i]) == 0)
            return kvd_fail(err, "tensors '%s' and '%s' are the same part",
                            kvd_gguf_name(m->file, m->by_name[i - 1]->tensor),
                            kvd_gguf_name(m->file, m->by_name[i]->tensor));
    m->d_head = (size_t)c->d_head;
    m->group = (size_t)kvd_config_group(c);
    m->n_kv_heads = (size_t)c->n_kv_heads;
    return 0;
}

/* Creates a model from `file`, an open GGUF file, which then belongs to the model. Returns NULL if
 * `file` is NULL. */
static kvd_gguf_model *start(kvd_gguf *file, kvd_config *c, kvd_err *err)
{
    if (!file)
        return NULL;
    kvd_gguf_model *m = calloc(1, sizeof *m);
    if (!m) {
        kvd_no_memory(err, "a model", sizeof *m);
        kvd_gguf_close(file);
        return NULL;
    }
    m->file = file;
    if (kvd_gguf_config(file, c, err) == 0) {
        if (name_all(m, c, err) == 0)
            return m;
        kvd_in(err, "'%s'", kvd_gguf_path(file));
    }
    kvd_gguf_model_close(m);
    return NULL;
}

kvd_gguf_model *kvd_gguf_model_open(const char *path, kvd_config *c, kvd_err *err)
{
    return start(kvd_gguf_open(path, err), c, err);
}

kvd_gguf_model *kvd_gguf_model_parse(const char *name, const void *bytes, size_t len, kvd_config *c,
                                     kvd_err *err)
{
    return start(kvd_gguf_parse(name, bytes, len, err), c, err);
}

void kvd_gguf_model_close(kvd_gguf_model *m)
{
    if (!m)
        return;
    kvd_gguf_close(m->file);
    free(m->entries);
    free(m->by_name);
    free(m);
}

size_t kvd_gguf_model_count(const kvd_gguf_model *m)
{
    return m->n;
}

const char *kvd_gguf_model_name(const kvd_gguf_model *m, size_t i)
{
    return m->entries[i].name;
}

int kvd_gguf_model_find(const kvd_gguf_model *m, const char *name, kvd_tensor *out, kvd_err *err)
{
    const entry *const *const at = bsearch(name, m->by_name, m->n, sizeof(*m->by_name), name_order);
    if (!at)
        return 1;
    const entry *const e = *at;
    if (kvd_gguf_tensor(m->file, e->tensor, out, err) ||
        (e->n_experts && kvd_tensor_take_slice(out, e->n_experts, e->expert, err)))
        return -1;
    if (e->column && out->rank == 1) {
        out->rank = 2;
        out->dims[1] = out->dims[0];
        out->dims[0] = 1;
    }
    out->name = e->name;
    out->order = e->order;
    out->d_head = m->d_head;
    out->group = m->group;
    out->n_kv_heads = m->n_kv_heads;
    return 0;
}

bool kvd_gguf_model_has_tokenizer(const kvd_gguf_model *m)
{
    /* Error if the key's value is not a text. Ignored, because the file then also has a
     * tokenizer. */
    kvd_err ignored;
    const char *s;
    size_t len;
    return kvd_gguf_text(m->file, "tokenizer.ggml.model", &s, &len, &ignored) != 1;
}
