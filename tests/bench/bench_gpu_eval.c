/* usage: bench_gpu_eval MODEL|shape:NAME [TOKENS [SEQ_LEN]]
 * Times kvdim-eval on random tokens: uncompressed, with half of the dimensions, with quality
 * statistics. shape:NAME: a published model's shape with random weights. */

#include "common/clock.h"
#include "common/stats.h"
#include "evaluate/evaluate.h"
#include "gpu_case.h"
#include "model/checkpoint/shapes.h"

enum { WARM_UP = 1, REPEATS = 3 };

/* Returns `width` columns of a random signed permutation matrix [d][d], and fills `back` with the
 * transpose of these columns. */
static float *permutation(kvd_rng *r, int d, int width, float *back)
{
    float *const a = need((size_t)d * (size_t)width * sizeof *a);
    int32_t *const order = shuffled(r, d);
    for (int j = 0; j < width; j++) {
        a[order[j] * width + j] = kvd_rng_below(r, 2) ? 1.0F : -1.0F;
        if (back)
            back[j * d + order[j]] = a[order[j] * width + j];
    }
    free(order);
    return a;
}

static void make_dims(kvd_dims *dims, const kvd_config *c, int width, int two_sided)
{
    kvd_rng r;
    kvd_rng_seed(&r, 3, 0);
    *dims = (kvd_dims){.method = "permuted",
                       .n_layers = c->n_layers,
                       .n_kv_heads = c->n_kv_heads,
                       .d_head = c->d_head};
    dims->head = need((size_t)(c->n_layers * c->n_kv_heads) * sizeof *dims->head);
    for (int i = 0; i < c->n_layers * c->n_kv_heads; i++) {
        kvd_dims_head *const h = &dims->head[i];
        h->d_qk = h->d_v = width;
        h->a_q = permutation(&r, c->d_head, width, NULL);
        h->a_k = two_sided ? permutation(&r, c->d_head, width, NULL) : h->a_q;
        h->b_v = need((size_t)c->d_head * (size_t)width * sizeof *h->b_v);
        h->a_v = permutation(&r, c->d_head, width, h->b_v);
    }
}

typedef struct {
    kvd_model_runner *r;
    kvd_batch batch;
    kvd_predictions all;
    kvd_quality *quality;
    kvd_plan plan;
    float *reference, *hidden;
} work;

static int uncompressed(work *w, kvd_err *err)
{
    return w->r->reference(w->r, &w->batch, w->reference, err);
}

static int choice(work *w, kvd_err *err)
{
    kvd_cache_account account = {0};
    return w->r->plan_run(w->r, &w->batch, &w->plan, 0, NULL, w->hidden, &account, NULL, err);
}

static int quality(work *w, kvd_err *err)
{
    const size_t d = (size_t)w->r->config->d_model;
    for (size_t first = 0; first < w->all.n; first += w->r->piece) {
        const size_t left = w->all.n - first, n = left < w->r->piece ? left : w->r->piece;
        const kvd_predictions p = {n, w->all.target + first, w->all.sequence + first, NULL};
        if (w->r->reference_logits(w->r, w->reference + first * d, n, err) ||
            w->r->score(w->r, w->hidden + first * d, &p, w->quality, err))
            return -1;
    }
    return 0;
}

static void timed(const char *what, const char *engine, work *w, int (*run)(work *, kvd_err *))
{
    kvd_err err = {""};
    double s[REPEATS];
    for (int i = -WARM_UP; i < REPEATS; i++) {
        const double started = kvd_clock_s();
        end_on(run(w, &err), &err);
        if (i >= 0)
            s[i] = kvd_clock_s() - started;
    }
    kvd_sort(s, REPEATS);
    printf("%-28s %-24s %8.1f ms (%.1f .. %.1f)  %9.0f tokens/s\n", what, engine,
           s[REPEATS / 2] * 1e3, s[0] * 1e3, s[REPEATS - 1] * 1e3,
           (double)w->all.n / s[REPEATS / 2]);
}

static void timed_choice(const char *what, work *w, const kvd_dims *dims, kvd_dtype type)
{
    kvd_err err = {""};
    const double started = kvd_clock_s();
    w->plan = (kvd_plan){.dims = dims, .type = type};
    end_on(w->r->plan_load(w->r, &w->plan, &err), &err);
    const double made = kvd_clock_s() - started;
    timed(what, w->r->plan_engine(&w->plan), w, choice);
    printf("%-28s %-24s %8.1f ms\n", "  its matrices", "", made * 1e3);
    w->r->plan_unload(w->r, &w->plan);
}

static void run(const kvd_checkpoint *c, kvd_dtype compute, size_t tokens, size_t seq_len)
{
    kvd_err err = {""};
    const kvd_config *const config = kvd_checkpoint_config(c);
    const double started = kvd_clock_s();
    work w = {.r = kvd_runner_cuda(c, compute, tokens, seq_len, &err)};
    end_on(!w.r, &err);
    printf("%s; %zu tokens in sequences of %zu; loaded in %.1f s\n", w.r->describe(w.r), tokens,
           seq_len, kvd_clock_s() - started);
    const size_t n = (tokens + seq_len - 1) / seq_len;
    size_t *const offset = need((n + 1) * sizeof *offset);
    uint32_t *const id = need((tokens + 1) * sizeof *id);
    int *const sequence = need(tokens * sizeof *sequence);
    kvd_rng r;
    kvd_rng_seed(&r, 1, 0);
    for (size_t i = 0; i < tokens; i++) {
        id[i] = (uint32_t)kvd_rng_below(&r, (uint64_t)config->vocab_size);
        sequence[i] = (int)(i / seq_len);
    }
    for (size_t s = 0; s <= n; s++)
        offset[s] = s * seq_len < tokens ? s * seq_len : tokens;
    w.batch = (kvd_batch){.n_sequences = n, .offset = offset, .id = id};
    w.all = (kvd_predictions){tokens, id + 1, sequence, NULL};
    w.quality = need(n * sizeof *w.quality);
    end_on(!(w.reference = w.r->rows_new(w.r, tokens, "rows", &err)) ||
               !(w.hidden = w.r->rows_new(w.r, tokens, "rows", &err)),
           &err);

    kvd_dims half, odd, two;
    make_dims(&half, config, config->d_head / 2, 0);
    make_dims(&odd, config, config->d_head / 2 + 3, 0);
    make_dims(&two, config, config->d_head / 2, 1);
    timed("uncompressed", "", &w, uncompressed);
    timed_choice("none", &w, NULL, compute);
    timed_choice("half width", &w, &half, compute);
    timed_choice("half width, two-sided", &w, &two, compute);
    timed_choice("no multiples of 16", &w, &odd, compute);
    timed_choice("half width, f16 store", &w, &half, KVD_F16);
    timed("quality with 2 heads", "", &w, quality);
    w.r->rows_free(w.r, w.reference);
    w.r->rows_free(w.r, w.hidden);
    w.r->free(w.r);
    kvd_dims_release(&half);
    kvd_dims_release(&odd);
    kvd_dims_release(&two);
    host_free(w.quality, offset, id, sequence);
}

int main(int argc, char **argv)
{
    const char *const name = argc > 1 ? argv[1] : "shape:llama-3.1-8b";
    const size_t tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 8192,
                 seq_len = argc > 3 ? strtoul(argv[3], NULL, 10) : 2048;
    kvd_err err = {""};
    if (!gpu_devices("eval", 1))
        return 0;
    const int shape = !strncmp(name, "shape:", 6);
    const kvd_shape *const s = shape ? kvd_shape_find(name + 6, &err) : NULL;
    kvd_checkpoint *const c = s       ? kvd_checkpoint_of_shape(s, 1, &err)
                              : shape ? NULL
                                      : kvd_checkpoint_open(name, &err);
    end_on(!c, &err);
    run(c, KVD_F32, tokens, seq_len);
    run(c, KVD_BF16, tokens, seq_len);
    kvd_checkpoint_close(c);
    return 0;
}
