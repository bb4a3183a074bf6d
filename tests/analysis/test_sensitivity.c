#include <stdio.h>

#include "analysis/sensitivity.h"
#include "model/pass/attention.h"
#include "model/pass/forward.h"

#include "make_checkpoint.h"
#include "temp_folder.h"
#include "unit.h"

enum { LAYERS = 2, KV = 2, GROUP = 2, D = 16, N = 24, LENGTHS = 3 };
static const size_t offset[LENGTHS] = {0, 10, N};
static kvd_checkpoint *model;
static uint32_t id[N];

typedef struct {
    double qdq[LAYERS][KV], kdk[LAYERS][KV], odo[LAYERS][KV], vdv[LAYERS][KV];
    float k[LAYERS][N][KV][D], v[LAYERS][N][KV][D];
    /* sum[t]: gradient with respect to one output element of token t, summed over backward passes;
     * square: sum of all squared gradients */
    double sum[N], square;
    kvd_sensitivity *s;
} seen;

static int keep_rows(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    seen *const x = ctx;
    (void)err;
    memcpy(x->k[in->layer], in->k, sizeof x->k[0]);
    memcpy(x->v[in->layer], in->v, sizeof x->v[0]);
    return 0;
}

static int take(void *ctx, const kvd_gradients *g, kvd_err *err)
{
    seen *const x = ctx;
    for (size_t t = 0; t < g->n_tokens; t++)
        for (size_t h = 0; h < (size_t)KV * GROUP; h++)
            for (size_t i = 0; i < D; i++) {
                const size_t at = (t * KV * GROUP + h) * D + i;
                x->qdq[g->layer][h / GROUP] += (double)g->q[at] * (double)g->dq[at];
                x->odo[g->layer][h / GROUP] += (double)g->o[at] * (double)g->d_o[at];
            }
    for (size_t t = 0; t < g->n_tokens; t++)
        for (size_t h = 0; h < KV; h++)
            for (size_t i = 0; i < D; i++) {
                const size_t at = (t * KV + h) * D + i;
                x->kdk[g->layer][h] += (double)x->k[g->layer][t][h][i] * (double)g->k[at];
                x->vdv[g->layer][h] += (double)x->v[g->layer][t][h][i] * (double)g->v[at];
            }
    if (g->layer == 0)
        for (size_t t = 0; t < g->n_tokens; t++) {
            const double y = (double)g->d_o[t * KV * GROUP * D + 3];
            x->sum[t] += y;
            x->square += y * y;
        }
    return x->s ? kvd_sensitivity_add(x->s, g, err) : 0;
}

static void run(size_t first, size_t n, int draws, uint64_t seed, seen *x, double *loss)
{
    kvd_err err = {""};
    size_t at[LENGTHS], n_predicted = 0;
    for (size_t i = 0; i <= n; i++)
        at[i] = offset[first + i] - offset[first];
    const kvd_batch b = {
        .n_sequences = n, .offset = at, .first_sequence = first, .id = id + offset[first]};
    const kvd_gradient_sink sink = {.take = take, .ctx = x};
    kvd_backward *const w = kvd_backward_new(model, N, N, &err);
    if (!w)
        fail_msg("%s", err.msg);
    if (draws)
        kvd_backward_draw(w, seed);
    OK(kvd_backward_run(w, &b, 0, &sink, loss, &n_predicted, &err));
    assert_int_equal(n_predicted, at[n] - n);
    kvd_backward_free(w);
}

static void near(double a, double b, double scale)
{
    if (!(fabs(a - b) <= 1e-4 * scale))
        fail_msg("%.9g and %.9g", a, b);
}

/* The sum of q dL/dq over a head must equal that of k dL/dk, because scores are products of q and
 * k. The same must hold for attention outputs and v. */
TEST(test_both_sides_agree)
{
    static seen x;
    kvd_err err = {""};
    kvd_dense_attention dense;
    kvd_capture capture;
    static float hidden[N][64];
    kvd_forward *const f = kvd_forward_new(model, N, N, &err);
    const kvd_batch b = {.n_sequences = 2, .offset = offset, .id = id};
    assert_non_null(f);
    kvd_dense_attention_init(&dense);
    kvd_capture_init(&capture, &dense.hook);
    capture.record = keep_rows;
    capture.ctx = &x;
    OK(kvd_forward_run(f, &b, &capture.hook, LAYERS - 1, &hidden[0][0], &err));
    kvd_dense_attention_release(&dense);
    kvd_forward_free(f);
    double loss = 0;
    run(0, 2, 0, 0, &x, &loss);
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < KV; h++) {
            assert_true(fabs(x.qdq[l][h]) > 1e-4 && fabs(x.odo[l][h]) > 1e-4);
            near(x.qdq[l][h], x.kdk[l][h], fabs(x.qdq[l][h]) + 0.01);
            near(x.odo[l][h], x.vdv[l][h], fabs(x.odo[l][h]) + 0.01);
        }
}

/* The gradient of log p(y) has mean 0 if the token y is drawn from the model, but not if y is the
 * next token of a text. */
TEST(test_drawn_gradients_average_out)
{
    enum { DRAWS = 100 };
    static seen drawn, text;
    double loss = 0, mean = 0, of_text = 0;
    for (uint64_t seed = 0; seed < DRAWS; seed++)
        run(0, 2, 1, seed, &drawn, &loss);
    run(0, 2, 0, 0, &text, &loss);
    for (size_t t = 0; t < N; t++) {
        mean += pow(drawn.sum[t] / DRAWS, 2);
        of_text += pow(text.sum[t], 2);
    }
    assert_true(of_text == text.square);
    /* If gradients have mean 0, averaging DRAWS of them divides their mean square by
     * about DRAWS. */
    assert_true(mean < 2.5 * drawn.square / DRAWS / DRAWS);
}

static void sums_of(size_t per_batch, uint64_t seed, kvd_spectrum *out)
{
    static seen x;
    double loss = 0;
    kvd_err err = {""};
    memset(&x, 0, sizeof x);
    x.s = kvd_sensitivity_new(kvd_checkpoint_config(model), &err);
    assert_non_null(x.s);
    for (size_t first = 0; first < 2; first += per_batch)
        run(first, per_batch, 1, seed, &x, &loss);
    *out = (kvd_spectrum){
        .model = {.n_layers = LAYERS, .n_heads = KV * GROUP, .n_kv_heads = KV, .d_head = D},
        .n_layers = LAYERS};
    OK(kvd_sensitivity_bases(x.s, N, out, &err));
    kvd_sensitivity_free(x.s);
}

/* Singular values computed from gradients must depend on the random seed, but not on the batch
 * size. */
TEST(test_bases)
{
    kvd_spectrum together, apart, other;
    sums_of(2, 3, &together);
    sums_of(1, 3, &apart);
    sums_of(2, 4, &other);
    for (int side = 0; side < 2; side++) {
        const kvd_pair pair = side ? KVD_PAIR_FVW : KVD_PAIR_FQK;
        assert_int_equal(together.pair[pair].n_rows, 1);
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < KV; h++) {
                const double *const a = kvd_spectrum_sigma(&together, pair, l, h),
                                    *const b = kvd_spectrum_sigma(&apart, pair, l, h),
                                    *const c = kvd_spectrum_sigma(&other, pair, l, h),
                                    *const left = kvd_spectrum_R(&together, pair, l, h),
                                    *const right = kvd_spectrum_right(&together, pair, l, h);
                for (int i = 0; i < D; i++) {
                    near(a[i], b[i], a[0]);
                    assert_true(i == 0 || a[i] <= a[i - 1]);
                    for (int j = 0; j < D; j++) {
                        double sum = 0;
                        for (int m = 0; m < D; m++)
                            sum += left[i * D + m] * right[j * D + m];
                        assert_true(fabs(sum - (i == j)) < 1e-6);
                    }
                }
                assert_true(fabs(a[0] - c[0]) > 1e-3 * a[0]);
            }
    }
    kvd_spectrum_release(&together);
    kvd_spectrum_release(&apart);
    kvd_spectrum_release(&other);
}

/* Only dimension 2 of q has a gradient g. Removing this dimension must raise the loss by
 * mean(q^2) mean(g^2) / 2. */
TEST(test_unit_of_sigma)
{
    static float q[N][KV * GROUP][D], g[N][KV * GROUP][D];
    kvd_err err = {""};
    kvd_spectrum s = {
        .model = {.n_layers = LAYERS, .n_heads = KV * GROUP, .n_kv_heads = KV, .d_head = D},
        .n_layers = LAYERS};
    for (int t = 0; t < N; t++)
        for (int h = 0; h < KV * GROUP; h++)
            for (int i = 0; i < D; i++) {
                q[t][h][i] = i == 2 ? 3.0F : 1e-4F * (float)((t * 7 + h * 3 + i * i * 5) % 11 - 5);
                g[t][h][i] = i == 2 ? 0.5F : 0;
            }
    kvd_sensitivity *const x = kvd_sensitivity_new(kvd_checkpoint_config(model), &err);
    for (int l = 0; l < LAYERS; l++) {
        const kvd_gradients in = {.config = kvd_checkpoint_config(model),
                                  .layer = l,
                                  .n_tokens = N,
                                  .q = &q[0][0][0],
                                  .dq = &g[0][0][0],
                                  .o = &q[0][0][0],
                                  .d_o = &g[0][0][0]};
        OK(kvd_sensitivity_add(x, &in, &err));
    }
    OK(kvd_sensitivity_bases(x, N, &s, &err));
    const double *const sigma = kvd_spectrum_sigma(&s, KVD_PAIR_FVW, 1, 1);
    /* Removing the value 3 with gradient 0.5 raises the loss by 3^2 * 0.5^2 / 2 for each of GROUP
     * query heads. */
    near(sigma[0] * sigma[0] / 2, GROUP * 0.5 * 9 * 0.25, 1);
    near(sigma[1], 0, 1e-2);
    kvd_sensitivity_free(x);
    kvd_spectrum_release(&s);
}

/* Tests the bits per number at distortion theta (reverse water-filling): a component of variance x
 * takes log2(x / theta) / 2 bits if x > theta, otherwise none. */
TEST(test_rate_distortion)
{
    kvd_err err = {""};
    kvd_spectrum s = {.model = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_head = 2},
                      .n_layers = 1};
    OK(kvd_spectrum_alloc(&s, KVD_PAIR_FQK, &err));
    OK(kvd_spectrum_alloc(&s, KVD_PAIR_FVW, &err));
    kvd_spectrum_sigma(&s, KVD_PAIR_FQK, 0, 0)[0] = sqrt(8);
    kvd_spectrum_sigma(&s, KVD_PAIR_FVW, 0, 0)[0] = sqrt(2);
    near(kvd_sensitivity_bits(&s, 1), (1.5 + 0.5) / 4, 1);
    near(kvd_sensitivity_bits(&s, 2e-6), (log2(4e6) / 2 + log2(1e6) / 2) / 4, 1);
    near(kvd_sensitivity_bits(&s, 3), 0.5 / 4, 1);
    near(kvd_sensitivity_bits(&s, 5.001), 0, 1);
    near(kvd_sensitivity_bits(&s, 100), 0, 1);
    kvd_spectrum_release(&s);
}

int main(void)
{
    char path[64];
    made_spec spec = MADE_SPEC_DEFAULTS;
    kvd_err err = {""};
    (void)snprintf(path, sizeof path, "%s/model", temp_folder());
    if (make_checkpoint(path, &spec, &err) || !(model = kvd_checkpoint_open(path, &err))) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (uint32_t i = 0; i < N; i++)
        id[i] = (i * 37 + 11) % 300;
    const int failed = unit_run(NULL, NULL);
    kvd_checkpoint_close(model);
    return failed;
}
