/*
 * Method cachegen: stores the differences of tokens to an anchor token with an entropy coder (Liu
 * et al. 2024, "CacheGen: KV Cache Compression and Streaming for Fast Large Language Model
 * Serving", arXiv 2310.07240, section 5.1). The anchor is the first of every `group` tokens and
 * takes 8 bits per number.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/bits/bits.h"
#include "methods/bits/calibration.h"
#include "methods/bits/rans.h"

enum { BIN, GROUP, GROUPS, OWN, ROWS };
static const kvd_parameter parameters[] = {
    {"bin", 1, 0.1, 8, false,
     "step of differences in the middle layers, in root mean squares of a channel's differences"},
    {"group", 10, 2, 1024, true, "tokens of a group, the first of which is its anchor"},
    {"groups", 1, 1, 1 << 16, true, "groups per block after the prompt"},
    {"own", 0, 0, 1, true,
     "1: blocks store their own steps and frequencies; 0: those of --calibration"},
    {"rows", 4096, 64, 1 << 20, true, "number of calibration tokens read"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"bin", 0.1, 4, true, NULL, 0, 0};

enum { ANCHOR_BITS = 8, ZERO = 127 /* code of a difference of 0 */, CODES = 2 * ZERO + 1 };

typedef struct {
    const kvd_parameter_values *v;
    int n_layers;
    size_t n_kv_heads, wide, group;
    /* [n_layers][n_kv_heads][KVD_N_SIDES][wide] quantisation steps, or NULL if `own` is 1 */
    float *step;
    /*
     * [n_layers][n_kv_heads][KVD_N_SIDES][1 + wide] Frequency tables: one for anchor tokens, then
     * one per channel. NULL if `own` is 1.
     */
    kvd_rans_table *table;
} cachegen;

static double unit_of(const cachegen *c, int layer)
{
    return c->v->value[BIN] * (0.5 + layer * 3 / c->n_layers * 0.5);
}

static size_t place(const cachegen *c, int layer, int kv_head, int side)
{
    return ((size_t)layer * c->n_kv_heads + (size_t)kv_head) * KVD_N_SIDES + (size_t)side;
}

static void read_anchor(const uint8_t *code, size_t d, float step, float zero, float *y)
{
    for (size_t j = 0; j < d; j++)
        y[j] = step * (float)code[j] + zero;
}

static uint8_t code_difference(float x, float anchor, float step)
{
    const float steps = step > 0 ? rintf((x - anchor) / step) : 0;
    return (uint8_t)(ZERO + fminf(fmaxf(steps, -ZERO), ZERO));
}

/*
 * Reads calibration data [n][d], sequences of `seq_len` tokens. If `count` is NULL, adds the
 * squared differences from the anchor tokens to square [d]. Otherwise counts the codes: of anchor
 * tokens in count[0], of channel j in count[1 + j]. Returns the number of differences per channel.
 */
static size_t read_rows(const cachegen *c, const float *rows, size_t n, size_t d, size_t seq_len,
                        const float *step, double *square, uint64_t (*count)[KVD_RANS_SYMBOLS],
                        float *y, uint8_t *code)
{
    size_t differences = 0;
    for (size_t i = 0; i < n; i++) {
        const float *const x = rows + i * d;
        float scale, zero;
        if (i % seq_len % c->group == 0) {
            kvd_quantise_codes(x, d, ANCHOR_BITS, code, &scale, &zero);
            read_anchor(code, d, scale, zero, y);
            for (size_t j = 0; count && j < d; j++)
                count[0][code[j]]++;
            continue;
        }
        differences++;
        for (size_t j = 0; j < d; j++)
            if (count)
                count[1 + j][code_difference(x[j], y[j], step[j])]++;
            else
                square[j] += ((double)x[j] - (double)y[j]) * ((double)x[j] - (double)y[j]);
    }
    return differences;
}

/* `unit` is the quantisation step, in units of the root mean square of a channel's differences. */
static int calibrate_head(cachegen *c, size_t at, const kvd_calibration_rows *r, size_t d,
                          double unit, kvd_err *err)
{
    const size_t seq_len = r->setup->calibration->seq_len;
    float *const step = c->step + at * c->wide, *const y = malloc(d * sizeof *y);
    double *const square = calloc(d, sizeof *square);
    uint64_t(*const count)[KVD_RANS_SYMBOLS] = calloc(1 + d, sizeof *count);
    uint8_t *const code = malloc(d);
    int status = y && square && count && code
                     ? 0
                     : kvd_no_memory(err, "frequencies", (1 + d) * sizeof *count);
    if (!status) {
        const size_t n = read_rows(c, r->cut, r->n, d, seq_len, NULL, square, NULL, y, code);
        if (n == 0)
            status = kvd_fail(err, "the calibration's sequences have one token each");
        for (size_t j = 0; n && j < d; j++)
            step[j] = (float)(unit * sqrt(square[j] / (double)n));
        (void)read_rows(c, r->cut, r->n, d, seq_len, step, NULL, count, y, code);
        for (size_t k = 0; n && k <= d; k++) {
            /*
             * Codes that do not occur in the calibration data may occur in other texts, so every
             * code gets a frequency above 0.
             */
            const size_t codes = k ? CODES : KVD_RANS_SYMBOLS;
            for (size_t s = 0; s < codes; s++)
                count[k][s] = 64 * count[k][s] + 1;
            kvd_rans_table_make(&c->table[at * (1 + c->wide) + k], count[k], codes);
        }
    }
    free(code);
    /* cppcheck-suppress autovarInvalidDeallocation ; a pointer to rows, not an array */
    free(count);
    free(square);
    free(y);
    return status;
}

static int calibrate(cachegen *c, const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const size_t most = (size_t)c->v->value[ROWS],
                 n = s->calibration->n_tokens < most ? s->calibration->n_tokens : most;
    kvd_calibration_rows rows;
    int status = kvd_calibration_rows_open(&rows, s, pre, n, err);
    for (int l = 0; !status && l < c->n_layers; l++)
        for (int g = 0; !status && g < s->config->n_kv_heads; g++)
            for (int side = 0; !status && side < KVD_N_SIDES; side++) {
                size_t d;
                status = kvd_calibration_rows_read(&rows, (kvd_side)side, l, g, &d, err) ||
                         calibrate_head(c, place(c, l, g, side), &rows, d, unit_of(c, l), err);
            }
    kvd_calibration_rows_close(&rows);
    return status ? -1 : 0;
}

static bool calibrated(const kvd_parameter_values *v)
{
    return !(v->value[OWN] > 0);
}

static void window(const kvd_parameter_values *v, kvd_side side, size_t *newest, size_t *block)
{
    (void)side;
    *newest = 0;
    *block = (size_t)v->value[GROUPS] * (size_t)v->value[GROUP];
}

static void close(void *self)
{
    cachegen *const c = self;
    free(c->step);
    free(c->table);
    free(c);
}

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    const bool latent = s->dims && s->dims->rebuild,
               pre = s->config->positions == KVD_POSITIONS_ROPE && latent;
    if (calibrated(v) && kvd_calibration_fits(s, pre, err))
        return -1;
    cachegen *const c = calloc(1, sizeof *c);
    if (!c)
        return kvd_no_memory(err, "a method", sizeof *c);
    *c = (cachegen){.v = v,
                    .n_layers = s->config->n_layers,
                    .n_kv_heads = (size_t)s->config->n_kv_heads,
                    .wide = (size_t)s->config->d_head * (size_t)(latent ? s->dims->heads : 1),
                    .group = (size_t)v->value[GROUP]};
    *self = c;
    if (!calibrated(v))
        return 0;
    const size_t places = (size_t)c->n_layers * c->n_kv_heads * KVD_N_SIDES;
    c->step = calloc(places * c->wide, sizeof *c->step);
    c->table = calloc(places * (1 + c->wide), sizeof *c->table);
    if (!c->step || !c->table
            ? kvd_no_memory(err, "tables", places * (1 + c->wide) * sizeof *c->table)
            : calibrate(c, s, pre, err)) {
        close(c);
        *self = NULL;
        return -1;
    }
    return 0;
}

typedef struct {
    const float *step;
    /* Frequency table of the anchor tokens, then the tables of the differences. */
    const kvd_rans_table *table;
    float *scale;
    float *own_step; /* [d] quantisation steps computed from the block itself */
    kvd_rans_table own_table[2];
    uint16_t *context; /* [n][d] index of each code's frequency table */
    uint8_t *code;
    uint8_t *stream;
} buffers;

static float *anchor_of(const cachegen *c, float *decoded, size_t i, size_t d)
{
    return decoded + (i - i % c->group) * d;
}

static void code_anchors(const cachegen *c, const kvd_bits_block *b, buffers *w, float *decoded)
{
    const size_t d = b->d;
    for (size_t i = 0; i < b->n; i += c->group) {
        float *const scale = w->scale + 2 * i;
        kvd_quantise_codes(b->x + i * d, d, ANCHOR_BITS, w->code + i * d, &scale[0], &scale[1]);
        read_anchor(w->code + i * d, d, scale[0], scale[1], decoded + i * d);
        memset(w->context + i * d, 0, d * sizeof *w->context);
    }
}

static void code_differences(const cachegen *c, const kvd_bits_block *b, buffers *w, float *decoded)
{
    const size_t d = b->d;
    for (size_t i = 0; i < b->n; i++)
        for (size_t j = 0; i % c->group && j < d; j++) {
            w->context[i * d + j] = (uint16_t)(c->step ? 1 + j : 1);
            w->code[i * d + j] =
                code_difference(b->x[i * d + j], anchor_of(c, decoded, i, d)[j], w->step[j]);
        }
}

static void set_own_steps(const cachegen *c, const kvd_bits_block *b, buffers *w, float *decoded)
{
    const size_t d = b->d, anchors = (b->n + c->group - 1) / c->group;
    for (size_t j = 0; j < d; j++) {
        double sum = 0;
        for (size_t i = 0; i < b->n; i++)
            if (i % c->group)
                sum += pow((double)b->x[i * d + j] - (double)anchor_of(c, decoded, i, d)[j], 2);
        const double mean = b->n > anchors ? sum / (double)(b->n - anchors) : 0;
        w->own_step[j] = kvd_round_f16((float)(unit_of(c, b->layer) * sqrt(mean)));
    }
    w->step = w->own_step;
}

/*
 * Makes the frequency tables of one block, writes them to bytes and reads them back, as a decoder
 * does. `*bytes` is their size.
 */
static int set_own_tables(buffers *w, size_t size, size_t *bytes, kvd_err *err)
{
    uint8_t stored[KVD_RANS_TABLE_ROOM];
    uint64_t count[KVD_RANS_SYMBOLS] = {0}, equal[KVD_RANS_SYMBOLS];
    size_t used;
    for (size_t i = 0; i < KVD_RANS_SYMBOLS; i++)
        equal[i] = 1;
    kvd_rans_table_make(&w->own_table[0], equal, KVD_RANS_SYMBOLS);
    for (size_t i = 0; i < size; i++)
        count[w->code[i]] += w->context[i];
    kvd_rans_table_make(&w->own_table[1], count, CODES);
    *bytes = kvd_rans_table_write(&w->own_table[1], stored);
    w->table = w->own_table;
    return kvd_rans_table_read(&w->own_table[1], stored, *bytes, &used, err);
}

static void read_codes(const cachegen *c, const kvd_bits_block *b, const buffers *w, float *decoded)
{
    const size_t d = b->d;
    for (size_t i = 0; i < b->n; i++) {
        const float *const anchor = anchor_of(c, decoded, i, d);
        const uint8_t *const code = w->code + i * d;
        if (i % c->group == 0)
            read_anchor(code, d, w->scale[2 * i], w->scale[2 * i + 1], decoded + i * d);
        for (size_t j = 0; i % c->group && j < d; j++)
            decoded[i * d + j] = anchor[j] + w->step[j] * (float)(code[j] - ZERO);
    }
}

static int code(const void *self, const kvd_bits_block *b, float *decoded, kvd_bits_count *count,
                kvd_err *err)
{
    const cachegen *const c = self;
    const size_t size = b->n * b->d, floats = 2 * b->n + b->d,
                 room = floats * sizeof(float) + 3 * size + kvd_rans_room(size),
                 at = place(c, b->layer, b->kv_head, (int)b->side);
    size_t bytes = 0, table_bytes = 0;
    int status = 0;
    float *const memory = malloc(room);
    if (!memory)
        return kvd_no_memory(err, "a block of the cache", room);
    buffers w = {.scale = memory, .own_step = memory + 2 * b->n};
    w.context = (uint16_t *)(void *)(memory + floats);
    w.code = (uint8_t *)(w.context + size);
    w.stream = w.code + size;
    code_anchors(c, b, &w, decoded);
    if (c->step) {
        w.step = c->step + at * c->wide;
        w.table = c->table + at * (1 + c->wide);
    } else {
        set_own_steps(c, b, &w, decoded);
    }
    code_differences(c, b, &w, decoded);
    if (!c->step)
        status = set_own_tables(&w, size, &table_bytes, err);
    status = status || kvd_rans_encode(w.table, w.context, w.code, size, w.stream, &bytes, err);
    memset(w.code, 0, size);
    status = status || kvd_rans_decode(w.table, w.context, w.stream, bytes, w.code, size, err);
    if (!status)
        read_codes(c, b, &w, decoded);
    free(memory);
    *count = (kvd_bits_count){8 * (double)bytes, 32 * (double)((b->n + c->group - 1) / c->group)};
    count->side += c->step ? 0 : 16 * (double)b->d + 8 * (double)table_bytes;
    return status ? -1 : 0;
}

const kvd_bits_method kvd_bits_cachegen = {
    .info =
        {
            .name = "cachegen",
            .summary = "differences to anchor tokens, coarser in later layers, entropy-coded",
            .parameter = parameters,
            .tradeoff = &tradeoff,
        },
    .stream = true,
    .calibrated = calibrated,
    .window = window,
    .open = open,
    .close = close,
    .code = code,
};
