/* Compares methods with PyTorch and SciPy (tests/oracle/make_methods.py). */
#include "code_rows.h"
#include "formats/activations.h"
#include "model/checkpoint/safetensors.h"
#include "temp_folder.h"
#include "worst.h"

static kvd_safetensors *file;

TEST(kivi)
{
    enum { N = 64, D = 32 };
    const kvd_parameter_values values = {.value = {2, 32, 64}};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const float *const x = tensor_of(file, "kivi_x", N * D);
        const float *const want =
            tensor_of(file, side == KVD_KEYS ? "kivi_keys" : "kivi_values", N * D);
        static float got[N * D];
        kvd_bits_count count;
        kvd_err err;
        const kvd_bits_block b = {.side = (kvd_side)side, .n = N, .d = D, .x = x, .prompt = true};
        assert_int_equal(kvd_bits_kivi.code(&values, &b, got, &count, &err), 0);
        for (size_t i = 0; i < (size_t)N * D; i++)
            assert_true(fabsf(got[i] - want[i]) < 1e-5f * (1 + fabsf(want[i])));
    }
}

enum { TOKENS = 96, HEADS = 2, WIDTH = 16, PROMPT = 40 };

static void attend(const char *text, const char *name, size_t dropped)
{
    const size_t offset[] = {0, TOKENS};
    const kvd_config config = {.n_layers = 1,
                               .n_heads = HEADS,
                               .n_kv_heads = 1,
                               .d_head = WIDTH,
                               .max_positions = 128,
                               .rope_theta = 1e4};
    const float *const q = tensor_of(file, "tokens_q", TOKENS * HEADS * WIDTH),
                       *const k = tensor_of(file, "tokens_k", TOKENS * WIDTH),
                       *const v = tensor_of(file, "tokens_v", TOKENS * WIDTH),
                       *const want = tensor_of(file, name, TOKENS * HEADS * WIDTH);
    static float got[TOKENS * HEADS * WIDTH];
    const kvd_attention_in in = {.config = &config,
                                 .n_sequences = 1,
                                 .offset = offset,
                                 .n_tokens = TOKENS,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .q_pre = q,
                                 .k_pre = k};
    const kvd_method_setup setup = {.config = &config};
    kvd_stepwise_account account = {0};
    kvd_plan plan;
    kvd_err err = {""};
    open_plan(&plan, text, PROMPT, &setup);
    OK(kvd_stepwise_heads(&plan, NULL, &in, 0, 0, 1, NULL, NULL, got, &account, &err));
    kvd_plan_close(&plan);
    assert_int_equal(account.dropped, dropped);
    for (size_t i = 0; i < (size_t)TOKENS * HEADS * WIDTH; i++)
        if (!(fabsf(got[i] - want[i]) < 1e-5f * (1 + fabsf(want[i]))))
            fail_msg("%s: row %zu, number %zu: %g, not %g", text, i / (HEADS * WIDTH),
                     i % (HEADS * WIDTH), (double)got[i], (double)want[i]);
}

TEST(selections)
{
    attend("h2o,heavy=10,recent=6", "h2o_out", TOKENS - 16);
    attend("snapkv,budget=12,window=8,kernel=5", "snapkv_out", PROMPT - 20);
    attend("think,p=0.4,window=8", "think_out", 0);
}

enum { ROWS = 256, KV = 2, D = 8, WIDE = KV * D, MODEL = 24 };
static char path[64];
static kvd_activations dump;

static int write_rows(const kvd_run *run, kvd_err *err)
{
    static float x[ROWS * D], weights[2 * KV * D * MODEL];
    static uint32_t token[3 * ROWS];
    const float *const k = tensor_of(file, "rows_k", ROWS * WIDE), *const v = tensor_of(
                                                                       file, "rows_v", ROWS * WIDE);
    kvd_activations a = {.model = {.n_layers = 1,
                                   .n_heads = KV,
                                   .n_kv_heads = KV,
                                   .d_head = D,
                                   .d_model = MODEL,
                                   .vocab_size = 10,
                                   .max_positions = 512,
                                   .rope_theta = 1e4,
                                   .name = "rows",
                                   .family = "llama",
                                   .rope_layout = "half",
                                   .dtype = "f32",
                                   .hash = "xxh3:0"},
                         .label = "rows",
                         .corpus_hash = "xxh3:1",
                         .n_tokens = ROWS,
                         .n_sequences = 1,
                         .seq_len = ROWS,
                         .n_layers = 1,
                         .dtype = KVD_F32,
                         .has_pre = true};
    int status = kvd_activations_create(&a, path, run, false, err);
    for (int t = 0; t < KVD_N_X; t++)
        for (int h = 0; !status && h < KV; h++) {
            for (size_t i = 0; i < (size_t)ROWS * D; i++)
                x[i] = (t == KVD_X_V ? v : k)[i / D * WIDE + (size_t)h * D + i % D];
            status = kvd_activations_put_rows(&a, (kvd_x)t, 0, h, 0, ROWS, x, err);
        }
    for (uint32_t t = 0; t < ROWS; t++)
        token[2 * ROWS + t] = t;
    return status || kvd_activations_put_weights(&a, 0, weights, weights, err) ||
           kvd_activations_put_tokens(&a, 0, ROWS, token, token + ROWS, token + 2 * ROWS, err) ||
           kvd_activations_finish(&a, err);
}

static const kvd_config config = {.n_layers = 1,
                                  .n_heads = KV,
                                  .n_kv_heads = KV,
                                  .d_head = D,
                                  .d_model = MODEL,
                                  .max_positions = 512,
                                  .rope_theta = 1e4};
static const kvd_method_setup setup = {.config = &config, .calibration = &dump};

TEST(palu)
{
    const float *const rows = tensor_of(file, "rows_k", ROWS * WIDE), *const want =
                                                                          tensor_of(file, "palu_k",
                                                                                    ROWS * WIDE);
    kvd_plan plan;
    double worst = 0, most = 0;
    open_plan(&plan, "palu,p=0.5,heads=2", 0, &setup);
    for (size_t h = 0; h < KV; h++) {
        const kvd_dims_head *const one = &plan.dims->head[h];
        assert_int_equal(one->d_qk, 8);
        for (size_t t = 0; t < ROWS; t++)
            for (size_t i = 0; i < D; i++) {
                double y = 0;
                for (size_t r = 0; r < 8; r++)
                    for (size_t j = 0; j < WIDE; j++)
                        y += (double)rows[t * WIDE + j] * (double)one->a_k[j * 8 + r] *
                             (double)one->b_k[r * D + i];
                const double w = (double)want[t * WIDE + h * D + i];
                worst = worse(worst, fabs(y - w));
                most = fmax(most, fabs(w));
            }
    }
    assert_true(worst < 1e-4 * most);
    kvd_plan_close(&plan);
}

/* Quantises head h of rows [ROWS][WIDE]. Writes the head's numbers to x [ROWS][D] and the
 * dequantised numbers to y [ROWS][D]. */
static kvd_bits_count code_head(const char *text, const kvd_method_setup *s, int side, int h,
                                const float *rows, float *x, float *y)
{
    kvd_bits_count count;
    for (size_t i = 0; i < (size_t)ROWS * D; i++)
        x[i] = rows[i / D * WIDE + (size_t)h * D + i % D];
    const kvd_bits_block b = {
        .side = (kvd_side)side, .kv_head = h, .n = ROWS, .d = D, .x = x, .prompt = true};
    code_rows(text, s, b, y, &count);
    return count;
}

/* K-means can end in different local optima, so the squared errors of the method kvquant and of
 * SciPy's levels may differ by 2 %. */
TEST(kvquant)
{
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const char *const names[][3] = {{"rows_k", "kvquant_k", "kvquant_k_apart"},
                                        {"rows_v", "kvquant_v", "kvquant_v_apart"}};
        const float *const rows = tensor_of(file, names[side][0], ROWS * WIDE),
                           *const want = tensor_of(file, names[side][1], ROWS * WIDE),
                           *const apart = tensor_of(file, names[side][2], ROWS * WIDE);
        double ours = 0, theirs = 0, n_apart = 0, count_apart = 0;
        for (int h = 0; h < KV; h++) {
            float x[ROWS * D], y[ROWS * D];
            const kvd_bits_count count =
                code_head("kvquant,bits=3,outliers=0.04,sink=0", &setup, side, h, rows, x, y);
            count_apart += (count.side - (side == KVD_KEYS ? 0 : 32.0 * ROWS)) / 32;
            for (size_t i = 0; i < (size_t)ROWS * D; i++) {
                const size_t at = i / D * WIDE + (size_t)h * D + i % D;
                if (apart[at] > 0) {
                    n_apart++;
                    assert_true(y[i] == want[at]);
                    continue;
                }
                ours += pow((double)y[i] - (double)x[i], 2);
                theirs += pow((double)want[at] - (double)x[i], 2);
            }
        }
        assert_true(n_apart == count_apart);
        if (!(ours < 1.02 * theirs && theirs < 1.02 * ours))
            fail_msg("%s: squared error %g, SciPy's levels %g", names[side][1], ours, theirs);
    }
}

static char fisher_path[64];
static kvd_fisher fisher;

static int write_fisher(const kvd_run *run, kvd_err *err)
{
    static float x[ROWS * WIDE];
    const char *const name[] = {"fisher_k", "fisher_v"};
    kvd_fisher f = {.model = dump.model,
                    .label = "rows",
                    .n_tokens = ROWS,
                    .n_sequences = 1,
                    .seq_len = ROWS,
                    .n_layers = 1,
                    .n_rows = ROWS};
    memcpy(f.corpus_hash, dump.corpus_hash, sizeof f.corpus_hash);
    int status = kvd_fisher_create(&f, fisher_path, run, err);
    for (int side = 0; !status && side < KVD_F_SIDES; side++) {
        const float *const w = tensor_of(file, name[side], ROWS * WIDE);
        for (size_t i = 0; i < (size_t)ROWS * WIDE; i++)
            x[(i % WIDE / D * ROWS + i / WIDE) * D + i % D] = w[i];
        status = kvd_fisher_put_rows(&f, side, 0, 0, ROWS, x, err);
    }
    status = status || kvd_fisher_finish(&f, err);
    kvd_fisher_close(&f);
    return status;
}

TEST(weighted)
{
    for (int i = 0; i < 2 * KVD_N_SIDES; i++) {
        const int side = i % 2, scaled = i / 2;
        const char *const names[2][5] = {
            {"rows_k", "fisher_k", "kvquant_k_apart", "fisher_levels_k", "fisher_scaled_k"},
            {"rows_v", "fisher_v", "kvquant_v_apart", "fisher_levels_v", "fisher_scaled_v"}};
        const float *const rows = tensor_of(file, names[side][0], ROWS * WIDE),
                           *const weight = tensor_of(file, names[side][1], ROWS * WIDE),
                           *const apart = tensor_of(file, names[side][2], ROWS * WIDE),
                           *const want = tensor_of(file, names[side][3 + scaled], ROWS * WIDE);
        /* weighted squared errors of quantised K or V: by kvquant with weights, by kvquant without
         * weights, by levels from SciPy */
        double error[3] = {0, 0, 0};
        const kvd_method_setup with = {.config = &config, .calibration = &dump, .fisher = &fisher};
        for (int plain = 0; plain < 2; plain++) {
            char text[64];
            snprintf(text, sizeof text, "kvquant,bits=3,outliers=0.04,sink=0,weights=%d",
                     plain    ? 0
                     : scaled ? 2
                              : 1);
            for (int h = 0; h < KV; h++) {
                float x[ROWS * D], y[ROWS * D], half[ROWS * D];
                (void)code_head(text, &with, side, h, rows, x, y);
                /* half[j]: half of (maximum - minimum) over the channel of keys, or over the vector
                 * of values, that contains number j. Outliers are ignored. */
                for (size_t j = 0; j < (size_t)ROWS * D; j++) {
                    float lo = INFINITY, hi = -INFINITY;
                    for (size_t k = 0; k < (side ? D : ROWS); k++) {
                        const size_t at = side ? j / D * D + k : k * D + j % D;
                        if (apart[at / D * WIDE + (size_t)h * D + at % D] > 0)
                            continue;
                        lo = fminf(lo, x[at]);
                        hi = fmaxf(hi, x[at]);
                    }
                    half[j] = (hi - lo) / 2;
                }
                for (size_t j = 0; j < (size_t)ROWS * D; j++) {
                    const size_t at = j / D * WIDE + (size_t)h * D + j % D;
                    /* weight of a squared error: the squared gradient; if not `scaled`, divided by
                     * (half the range of the numbers)^2 */
                    const double w =
                        (double)weight[at] * (scaled ? 1 : 1 / pow((double)half[j], 2));
                    if (apart[at] > 0)
                        continue;
                    error[plain] += w * pow((double)y[j] - (double)x[j], 2);
                    error[2] += plain ? 0 : w * pow((double)want[at] - (double)x[j], 2);
                }
            }
        }
        if (!(error[0] < 1.002 * error[2] && error[2] < 1.02 * error[0]))
            fail_msg("%s: weighted error %g, SciPy's levels %g", names[side][3 + scaled], error[0],
                     error[2]);
        if (!(error[0] < 0.97 * error[1]))
            fail_msg("%s: weighted error %g, %g without weights", names[side][3 + scaled], error[0],
                     error[1]);
    }
}

TEST(ranks)
{
    enum { CASES = 25, TARGETS = 2 * KV };
    const float *const information = tensor_of(file, "ranks_information", CASES * TARGETS),
                       *const want = tensor_of(file, "ranks", 2 * CASES * TARGETS);
    const char *const text[] = {"palu,p=0.5,heads=1,search=1", "palu,p=0.25,heads=1,search=1",
                                "palu,p=0.5,heads=1,search=2"};
    for (size_t i = 0; i < 3 * (size_t)CASES; i++) {
        double root[KVD_F_SIDES][KV], none[KV] = {0};
        kvd_fisher f = {.n_layers = 1};
        for (int side = 0; side < KVD_F_SIDES; side++) {
            for (size_t h = 0; h < KV; h++)
                root[side][h] =
                    (double)information[i % CASES * TARGETS + h * KVD_N_SIDES + (size_t)side];
            f.root[side] = i < 2 * (size_t)CASES ? root[side] : none;
            f.weight[side] = i < 2 * (size_t)CASES ? none : root[side];
        }
        const kvd_method_setup with = {.config = &config, .calibration = &dump, .fisher = &f};
        kvd_plan plan;
        open_plan(&plan, text[i / CASES], 0, &with);
        for (size_t j = 0; j < TARGETS; j++) {
            const kvd_dims_head *const h = &plan.dims->head[j / KVD_N_SIDES];
            const size_t at = (i < 2 * (size_t)CASES ? i : i - 2 * (size_t)CASES) * TARGETS + j;
            assert_int_equal(j % KVD_N_SIDES ? h->d_v : h->d_qk, (int)want[at]);
        }
        kvd_plan_close(&plan);
    }
}

static int set_up(void **state)
{
    (void)state;
    kvd_err err = {""};
    if (!(file = kvd_safetensors_open("tests/data/methods.safetensors", &err)))
        return -1;
    snprintf(path, sizeof path, "%s/a.h5", temp_folder());
    snprintf(fisher_path, sizeof fisher_path, "%s/f.h5", temp_folder());
    return write_rows(test_run(), &err) || kvd_activations_open(&dump, path, &err) ||
           write_fisher(test_run(), &err) || kvd_fisher_open(&fisher, fisher_path, &err);
}

static int tear_down(void **state)
{
    (void)state;
    kvd_activations_close(&dump);
    kvd_fisher_close(&fisher);
    kvd_safetensors_close(file);
    return 0;
}

TEST_MAIN(set_up, tear_down)
