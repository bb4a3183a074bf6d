/* usage: tool_selection DUMP.h5 METHOD PROMPT group|each OUT.h5
 *
 * Writes which tokens METHOD keeps, for tests/oracle/public_selections.py.
 * DUMP.h5  Q, K and V; only the first sequence is used
 * PROMPT   number of prompt tokens
 * group    query heads share KV heads as in the model
 * each     every query head has its own copy of K and V
 * OUT.h5   /kept [layer][head][prompt or decode step][token]: 1 if the token is stored, else 0 */
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "formats/activations.h"
#include "methods/head.h"
#include "methods/method.h"
#include "model/pass/blocks.h"

static const kvd_schema schema = {"selection", 1, "Tokens that a cache keeps"};

enum { MOST_HEADS = 64 };

typedef struct {
    kvd_activations dump;
    kvd_config config;
    kvd_plan plan;
    /* n: number of tokens. prompt: number of prompt tokens. repeat: number of copies of each KV
     * head. */
    size_t n, prompt, repeat;
    float *x[KVD_X_V + 1]; /* Q, K, V of one layer: [n tokens][heads][d_head] */
    float *row, *out;
    /* [n_layers][n_kv_heads][steps][n]: 1 if the token is in the cache after this step. Step 0 is
     * the prompt. */
    uint8_t *kept;
} selection;

static size_t heads_of(const selection *s, int x)
{
    return (size_t)(x == KVD_X_Q ? s->config.n_heads : s->config.n_kv_heads);
}

static size_t steps(const selection *s)
{
    return 1 + s->n - s->prompt;
}

static int open(selection *s, char **argv, kvd_err *err)
{
    kvd_method m;
    size_t *start = NULL, n_sequences;
    if (kvd_activations_open(&s->dump, argv[1], err) || kvd_method_parse(argv[2], &m, err) ||
        kvd_activations_sequences(&s->dump, s->dump.n_tokens, &start, &n_sequences, err))
        return -1;
    const kvd_model_info *const model = &s->dump.model;
    const bool each = strcmp(argv[4], "each") == 0;
    s->n = start[1];
    free(start);
    s->prompt = strtoull(argv[3], NULL, 10);
    if (model->n_heads > MOST_HEADS)
        return kvd_fail(err, "%d heads, the tool takes %d", model->n_heads, MOST_HEADS);
    if (s->prompt < 1 || s->prompt >= s->n)
        return kvd_fail(err, "a prompt of '%s' tokens, the sequence has %zu", argv[3], s->n);
    s->repeat = each ? (size_t)(model->n_heads / model->n_kv_heads) : 1;
    s->config = (kvd_config){.n_layers = s->dump.n_layers,
                             .n_heads = model->n_heads,
                             .n_kv_heads = each ? model->n_heads : model->n_kv_heads,
                             .d_head = model->d_head,
                             .max_positions = model->max_positions,
                             .rope_theta = model->rope_theta};
    s->plan = m.plan;
    s->plan.prompt = s->prompt;
    s->plan.seed = 1;
    if (!s->plan.tokens || kvd_plan_needs(&s->plan) & KVD_NEEDS_PRE_ROPE ||
        kvd_plan_first_pass(&s->plan))
        return kvd_fail(err, "'%s' does not choose tokens layer by layer", argv[2]);
    const kvd_method_setup setup = {.config = &s->config, .seed = s->plan.seed};
    const size_t width = (size_t)s->config.n_heads * (size_t)s->config.d_head;
    bool failed = false;
    for (int x = KVD_X_Q; x <= KVD_X_V; x++)
        failed = !(s->x[x] = malloc(s->n * width * sizeof(float))) || failed;
    failed = !(s->row = malloc(s->n * (size_t)s->config.d_head * sizeof(float))) || failed;
    failed = !(s->out = malloc(s->n * width * sizeof(float))) || failed;
    failed =
        !(s->kept = calloc((size_t)s->config.n_layers * heads_of(s, KVD_X_K) * steps(s), s->n)) ||
        failed;
    return failed ? kvd_no_memory(err, "rows of a layer", s->n * width * sizeof(float))
                  : kvd_plan_open(&s->plan, &setup, err);
}

static int read_layer(selection *s, int layer, kvd_err *err)
{
    const size_t d = (size_t)s->config.d_head;
    for (int x = KVD_X_Q; x <= KVD_X_V; x++)
        for (size_t h = 0, heads = heads_of(s, x); h < heads; h++) {
            const size_t from = x == KVD_X_Q ? h : h / s->repeat;
            void *const scratch = s->dump.dtype == KVD_F32 ? NULL : s->out;
            if (kvd_activations_rows(&s->dump, (kvd_x)x, layer, (int)from, 0, s->n, s->row, scratch,
                                     err))
                return -1;
            for (size_t t = 0; t < s->n; t++)
                memcpy(s->x[x] + (t * heads + h) * d, s->row + t * d, d * sizeof(float));
        }
    return 0;
}

/* Runs the compression method METHOD on n KV heads: first on the prompt, then token by token.
 * Records which tokens it keeps in the cache. */
static int run_heads(selection *s, int layer, int g, size_t n, kvd_err *err)
{
    static kvd_head h[MOST_HEADS];
    kvd_stepwise_account account = {0};
    const size_t offset[] = {0, s->n};
    const kvd_attention_in in = {.config = &s->config,
                                 .layer = layer,
                                 .n_sequences = 1,
                                 .offset = offset,
                                 .n_tokens = s->n,
                                 .q = s->x[KVD_X_Q],
                                 .k = s->x[KVD_X_K],
                                 .v = s->x[KVD_X_V]};
    int status = 0;
    for (size_t i = 0; i < n; i++) {
        h[i] = (kvd_head){.p = &s->plan,
                          .n = s->n,
                          .n0 = s->prompt,
                          .g = g + (int)i,
                          .in = &in,
                          .room = s->prompt,
                          .step_room = 1,
                          .account = &account};
        kvd_head_describe(&h[i], &in);
        status = kvd_head_allocate(&h[i], err) || status;
    }
    for (size_t end = s->prompt, from = 0; !status && end <= s->n; from = end++) {
        for (size_t i = 0; i < n; i++) {
            h[i].base = h[i].first = from;
            h[i].end = end;
        }
        status = kvd_heads_take(h, n, s->out, err);
        for (size_t i = 0; !status && i < n; i++) {
            const size_t head = (size_t)layer * heads_of(s, KVD_X_K) + (size_t)g + i;
            uint8_t *const kept = s->kept + (head * steps(s) + end - s->prompt) * s->n;
            for (size_t e = 0; e < h[i].m; e++)
                kept[h[i].position[e]] = 1;
        }
    }
    for (size_t i = 0; i < n; i++)
        kvd_head_release(&h[i]);
    return status;
}

static int write(const selection *s, const char *path, const kvd_run *run, kvd_err *err)
{
    kvd_h5 f;
    const kvd_h5_spec spec = {
        .path = "/kept",
        .long_name = "1 where the token is stored, after the prompt and after every step",
        .units = "1",
        .type = H5T_STD_U8LE,
        .rank = 4,
        .dims = {(hsize_t)s->config.n_layers, heads_of(s, KVD_X_K), steps(s), s->n},
        .axes = {"layer", "head", "step", "token"}};
    if (kvd_h5_create(&f, path, &schema, run, err))
        return -1;
    if (!kvd_h5_write(&f, &spec, H5T_NATIVE_UINT8, s->kept, err) && !kvd_h5_finish(&f, err))
        return 0;
    kvd_h5_close(&f, false);
    return -1;
}

int main(int argc, char **argv)
{
    if (argc != 6 || (strcmp(argv[4], "group") != 0 && strcmp(argv[4], "each") != 0)) {
        (void)fprintf(stderr, "usage: tool_selection DUMP.h5 METHOD PROMPT group|each OUT.h5\n");
        return 2;
    }
    kvd_err err = {""};
    kvd_run run = {0};
    kvd_common_options common = {.seed = 1, .threads = 1};
    selection s = {0};
    int status =
        kvd_run_start(&run, "tool_selection", argc, argv, &common, &err) || open(&s, argv, &err);
    const int saved = kvd_blas_serial();
    for (int l = 0; !status && l < s.config.n_layers; l++) {
        status = read_layer(&s, l, &err);
        const int together = kvd_plan_heads_together(&s.plan) ? s.config.n_kv_heads : 1;
        for (int g = 0; !status && g < s.config.n_kv_heads; g += together)
            status = run_heads(&s, l, g, (size_t)together, &err);
    }
    kvd_blas_restore(saved);
    status = status || write(&s, argv[5], &run, &err);
    kvd_plan_close(&s.plan);
    for (int x = KVD_X_Q; x <= KVD_X_V; x++)
        free(s.x[x]);
    free(s.row);
    free(s.out);
    free(s.kept);
    kvd_activations_close(&s.dump);
    kvd_run_release(&run);
    return kvd_run_exit("tool_selection", status, &err);
}
