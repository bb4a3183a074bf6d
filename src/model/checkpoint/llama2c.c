#include "model/checkpoint/llama2c.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HEADER_INTS = 7, HEADER_BYTES = 4 * HEADER_INTS };

typedef enum { ONCE, PER_LAYER } repeat;

/* a weight, such as W_Q, whose matrices for all layers follow one another in the file */
typedef struct {
    /* name of the weight in Hugging Face files, without the layer number; "" if the weight is not
     * read */
    const char *name;
    repeat repeat;
    size_t rows, cols;
} part;

enum { N_PARTS = 14 };

/* Lists the weights in the order of the file; each is stored for all layers together. */
static int list_parts(const kvd_config *c, part *p)
{
    const size_t d = (size_t)c->d_model, f = (size_t)c->d_ffn, v = (size_t)c->vocab_size;
    const size_t q = (size_t)c->n_heads * (size_t)c->d_head,
                 kv = (size_t)c->n_kv_heads * (size_t)c->d_head;
    const size_t table = (size_t)c->max_positions * ((size_t)c->d_head / 2);
    const part all[N_PARTS] = {
        {"model.embed_tokens.weight", ONCE, v, d},
        {"input_layernorm.weight", PER_LAYER, d, 0},
        {"self_attn.q_proj.weight", PER_LAYER, q, d},
        {"self_attn.k_proj.weight", PER_LAYER, kv, d},
        {"self_attn.v_proj.weight", PER_LAYER, kv, d},
        {"self_attn.o_proj.weight", PER_LAYER, d, q},
        {"post_attention_layernorm.weight", PER_LAYER, d, 0},
        {"mlp.gate_proj.weight", PER_LAYER, f, d}, /* w1 */
        {"mlp.down_proj.weight", PER_LAYER, d, f}, /* w2 */
        {"mlp.up_proj.weight", PER_LAYER, f, d},   /* w3 */
        {"model.norm.weight", ONCE, d, 0},
        {"", ONCE, table, 0}, /* RoPE cosines, not read */
        {"", ONCE, table, 0}, /* RoPE sines, not read */
        {"lm_head.weight", ONCE, v, d},
    };
    memcpy(p, all, sizeof all);
    return c->tied_head ? N_PARTS - 1 : N_PARTS;
}

static size_t part_elements(const part *p)
{
    return p->rows * (p->cols ? p->cols : 1);
}

static size_t part_copies(const kvd_config *c, const part *p)
{
    return p->repeat == PER_LAYER ? (size_t)c->n_layers : 1;
}

static int file_bytes(const kvd_config *c, size_t *bytes)
{
    part p[N_PARTS];
    const int n = list_parts(c, p);
    size_t total = 0, more = 0;
    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(part_elements(&p[i]), part_copies(c, &p[i]), &more) ||
            __builtin_add_overflow(total, more, &total))
            return -1;
    if (__builtin_mul_overflow(total, sizeof(float), &total) ||
        __builtin_add_overflow(total, (size_t)HEADER_BYTES, bytes))
        return -1;
    return 0;
}

static int32_t int_at(const unsigned char *bytes, int i)
{
    const unsigned char *b = bytes + 4 * i;
    const uint32_t u =
        (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    int32_t value;
    memcpy(&value, &u, sizeof value);
    return value;
}

/* Returns the file format, other than llama2.c's, that begins with these bytes, or NULL. */
static const char *other_format(const unsigned char *bytes)
{
    static const struct {
        const char *magic;
        size_t len;
        const char *what;
    } known[] = {
        {"24ka", 4, "a llama2.c export of version 1 or 2; only version 0 (\"legacy\") is read"},
        {"PK\3\4", 4, "a PyTorch file; convert it to safetensors"},
        {"\x80\2", 2, "a PyTorch file; convert it to safetensors"},
        {"GGUF", 4, "a GGUF file; give it the ending .gguf"},
        {"EOPT", 4, "a TPOE file"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (memcmp(bytes, known[i].magic, known[i].len) == 0)
            return known[i].what;
    return NULL;
}

static int read_header(const unsigned char *bytes, kvd_config *c, kvd_err *err)
{
    static const char *const field[HEADER_INTS] = {
        "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"};
    int *const where[HEADER_INTS] = {&c->d_model,    &c->d_ffn,      &c->n_layers,     &c->n_heads,
                                     &c->n_kv_heads, &c->vocab_size, &c->max_positions};
    c->tied_head = int_at(bytes, 5) > 0;
    for (int i = 0; i < HEADER_INTS; i++) {
        const int64_t stored = int_at(bytes, i), value = i == 5 && stored < 0 ? -stored : stored;
        if (value < 1 || value > KVD_CONFIG_MAX_SIZE)
            return kvd_fail(err, "not a llama2.c file: %s is %" PRId64 ", not within 1 to %d",
                            field[i], stored, KVD_CONFIG_MAX_SIZE);
        *where[i] = (int)value;
    }
    if (c->d_model % c->n_heads)
        return kvd_fail(err, "not a llama2.c file: dim %d is not a multiple of n_heads %d",
                        c->d_model, c->n_heads);
    if (c->n_heads % c->n_kv_heads)
        return kvd_fail(err, "not a llama2.c file: n_heads %d is not a multiple of n_kv_heads %d",
                        c->n_heads, c->n_kv_heads);
    c->d_head = c->d_model / c->n_heads;
    if (c->d_head % 2)
        return kvd_fail(
            err, "not a llama2.c file: dim %d / n_heads %d is odd, RoPE needs an even head size",
            c->d_model, c->n_heads);
    return 0;
}

static int check_size(const kvd_config *c, size_t len, kvd_err *err)
{
    size_t wanted = 0, tied = 0;
    kvd_config shared = *c;
    shared.tied_head = true;
    const int overflow = file_bytes(c, &wanted);
    if (!overflow && wanted == len)
        return 0;
    char need[32] = "more than any file's";
    if (!overflow)
        (void)snprintf(need, sizeof need, "%zu", wanted);
    const char *why = "";
    if (!c->tied_head && !file_bytes(&shared, &tied) && tied == len)
        why = "; it ends where the head begins that its negative vocab_size announces";
    return kvd_fail(
        err,
        "not a llama2.c file, or cut short: %zu bytes, but dim %d, hidden_dim %d, n_layers %d, "
        "n_heads %d, n_kv_heads %d, vocab_size %s%d, seq_len %d need %s%s",
        len, c->d_model, c->d_ffn, c->n_layers, c->n_heads, c->n_kv_heads, c->tied_head ? "" : "-",
        c->vocab_size, c->max_positions, need, why);
}

int kvd_llama2c_parse(const char *name, const void *bytes, size_t len, kvd_config *c, kvd_err *err)
{
    memset(c, 0, sizeof *c);
    if (len < HEADER_BYTES)
        return kvd_fail(err, "'%s': not a llama2.c file: %zu bytes, its header alone takes %d",
                        name, len, HEADER_BYTES);
    const char *other = other_format(bytes);
    if (other)
        return kvd_fail(err, "'%s': not a llama2.c file but %s", name, other);
    if (read_header(bytes, c, err) || check_size(c, len, err))
        return kvd_in(err, "'%s'", name);
    (void)snprintf(c->family, sizeof c->family, "llama2.c");
    c->norm_eps = 1e-5;
    c->rope_theta = 10000;
    c->rope_layout = KVD_ROPE_INTERLEAVED;
    c->rope_scaling = KVD_ROPE_DEFAULT;
    c->rope_factor = c->rope_low_freq_factor = c->rope_high_freq_factor = 1;
    /* Token ids that llama2.c's file format fixes: 1 begins a text, 2 ends it. */
    c->bos_id = c->vocab_size > 1 ? 1 : -1;
    c->eos_id = c->vocab_size > 2 ? 2 : -1;
    return 0;
}

/* Splits the name of a tensor, for example "model.layers.12.mlp.up_proj.weight". Sets *layer to 12,
 * and returns "mlp.up_proj.weight". Returns NULL if the name has no layer. */
static const char *split_layer(const char *name, size_t *layer)
{
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return NULL;
    const char *p = name + sizeof prefix - 1, *const digits = p;
    *layer = 0;
    for (; *p >= '0' && *p <= '9' && p - digits < 9; p++)
        *layer = *layer * 10 + (size_t)(*p - '0');
    if (p == digits || *p != '.' || (digits[0] == '0' && p - digits > 1))
        return NULL;
    return p + 1;
}

int kvd_llama2c_find(const char *file, const void *bytes, const kvd_config *c, const char *name,
                     kvd_tensor *out)
{
    part p[N_PARTS];
    const int n = list_parts(c, p);
    size_t layer = 0, at = 0;
    const char *rest = split_layer(name, &layer);
    const char *wanted = rest ? rest : name;
    if (!rest && c->tied_head && strcmp(name, "lm_head.weight") == 0)
        wanted = "model.embed_tokens.weight";
    for (int i = 0; i < n; i++) {
        const size_t each = part_elements(&p[i]), copies = part_copies(c, &p[i]);
        if (p[i].name[0] && strcmp(p[i].name, wanted) == 0 &&
            (p[i].repeat == PER_LAYER) == (rest != NULL)) {
            if (layer >= copies)
                return 1;
            const unsigned char *data = (const unsigned char *)bytes + HEADER_BYTES;
            *out = (kvd_tensor){.name = name,
                                .dtype = KVD_F32,
                                .rank = p[i].cols ? 2 : 1,
                                .dims = {p[i].rows, p[i].cols},
                                .n = each,
                                .data = data + (at + layer * each) * sizeof(float),
                                .file = file};
            return 0;
        }
        at += each * copies;
    }
    return 1;
}
