/* Tests exported models, whose weights include projection matrices. Logits must equal those of the
 * original model that multiplies Q, K and V by the same projection matrices. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dims_fixture.h"
#include "expected.h"
#include "export/export.h"
#include "make_checkpoint.h"
#include "methods/cache.h"
#include "methods/folded.h"
#include "model/checkpoint/safetensors.h"
#include "model/pass/forward.h"
#include "temp_folder.h"
#include "unit.h"

enum { TOKENS = 37 };
static const double bar =
    /* accepted distance between two models' logits, relative to the norm of the logits */
    2e-5;

static const char *place;
static char out[64], made[64];

static int make_place(void **state)
{
    (void)state;
    place = temp_folder();
    (void)snprintf(out, sizeof out, "%s/out", place);
    (void)snprintf(made, sizeof made, "%s/made", place);
    return 0;
}

static void must(int status, const kvd_err *err)
{
    if (status)
        fail_msg("%s", err->msg);
}

static kvd_checkpoint *open_model(const char *path)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = kvd_checkpoint_open(path, &err);
    must(!c, &err);
    return c;
}

static void random_floats(kvd_rng *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kvd_rng_normal(r);
}

TEST(test_fold)
{
    enum { D = 6, COLS = 11, ROWS = 5, LD = 3 * D };
    kvd_rng rng;
    kvd_rng_seed(&rng, 4, 0);
    double *const scratch = unit_alloc(kvd_fold_scratch(D, COLS) * sizeof *scratch);
    for (size_t m = 1; m <= D; m++) {
        float a[D * D], w[D * COLS], before[D * COLS], o[ROWS * LD], o_before[ROWS * LD];
        random_floats(&rng, a, D * m);
        random_floats(&rng, w, D * COLS);
        random_floats(&rng, o, ROWS * LD);
        memcpy(before, w, sizeof w);
        memcpy(o_before, o, sizeof o);
        kvd_fold_rows(D, m, a, COLS, w, scratch);
        for (size_t i = 0; i < D; i++)
            for (size_t j = 0; j < COLS; j++) {
                double sum = 0;
                for (size_t k = 0; i < m && k < D; k++)
                    sum += (double)a[k * m + i] * (double)before[k * COLS + j];
                assert_true(fabs(sum - (double)w[i * COLS + j]) <= 1e-6 * (1 + fabs(sum)));
                assert_true(i < m || w[i * COLS + j] == 0);
            }
        kvd_fold_columns(D, m, a, ROWS, LD, o + D, scratch);
        for (size_t i = 0; i < ROWS; i++)
            for (size_t j = 0; j < LD; j++) {
                const size_t at = j - D;
                double sum = j < D || j >= 2 * D ? (double)o_before[i * LD + j] : 0;
                for (size_t k = 0; j >= D && at < m && k < D; k++)
                    sum += (double)o_before[i * LD + D + k] * (double)a[at * D + k];
                assert_true(fabs(sum - (double)o[i * LD + j]) <= 1e-6 * (1 + fabs(sum)));
            }
    }
}

static float *logits_of(const kvd_checkpoint *c, kvd_attention *hook)
{
    kvd_err err = {""};
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t vocab = (size_t)config->vocab_size, offset[2] = {0, TOKENS};
    uint32_t id[TOKENS];
    for (size_t i = 0; i < TOKENS; i++)
        id[i] = (uint32_t)((i * i * 13 + 5 * i + 3) % vocab);
    const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = id};
    float *const hidden = unit_alloc(TOKENS * (size_t)config->d_model * sizeof *hidden);
    float *const logits = unit_alloc(TOKENS * vocab * sizeof *logits);
    kvd_forward *const f = kvd_forward_new(c, TOKENS, TOKENS, &err);
    must(!f || kvd_forward_run(f, &b, hook, -1, hidden, &err) ||
             kvd_forward_logits(f, hidden, TOKENS, logits, &err),
         &err);
    kvd_forward_free(f);
    return logits;
}

static float *dense_logits(const kvd_checkpoint *c)
{
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    float *const logits = logits_of(c, &dense.hook);
    kvd_dense_attention_release(&dense);
    return logits;
}

static float *cut_logits(const kvd_checkpoint *c, const kvd_dims *dims)
{
    kvd_err err = {""};
    kvd_cache cache;
    const kvd_plan plan = {.dims = dims, .type = KVD_F32};
    must(kvd_cache_init(&cache, kvd_checkpoint_config(c), &plan, TOKENS, &err), &err);
    float *const logits = logits_of(c, &cache.hook);
    kvd_cache_release(&cache);
    return logits;
}

static double distance(const float *x, const float *y, size_t n)
{
    double error = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        error += d * d;
        square += (double)y[i] * (double)y[i];
    }
    return sqrt(error / square);
}

/* Makes projections with `method`. If `full`, every head keeps all dimensions; otherwise heads keep
 * different numbers of dimensions. */
static void make_dims(kvd_dims *dims, const kvd_config *config, const kvd_dims_method *method,
                      bool full)
{
    kvd_err err = {""};
    kvd_spectrum s;
    kvd_widths w;
    must(fixture_spectrum(&s, config, 5, &err) ||
             kvd_widths_alloc(&w, config->n_layers, config->n_kv_heads, config->d_head, &err),
         &err);
    for (int i = 0; i < config->n_layers * config->n_kv_heads; i++) {
        w.kept[0][i] = full ? config->d_head : 1 + (i * 7 + 3) % config->d_head;
        w.kept[1][i] = full ? config->d_head : 1 + (i * 5 + 6) % config->d_head;
    }
    must(kvd_dims_build(dims, method, &s, &w, &err), &err);
    if (!kvd_folds_qk(config))
        kvd_dims_leave(dims, 0);
    kvd_widths_release(&w);
    kvd_spectrum_release(&s);
}

static int export_to(const kvd_checkpoint *c, const kvd_dims *dims, const kvd_dtype *dtype,
                     kvd_err *err)
{
    kvd_output folder;
    kvd_folded_list list = {0};
    kvd_progress progress;
    kvd_checkpoint_out w = {.from = c,
                            .folded = &list,
                            .as_stored = !dtype,
                            .dtype = dtype ? *dtype : KVD_F32,
                            .progress = &progress};
    kvd_progress_start(&progress, "export", "MB", 0, true);
    int status = kvd_output_folder_begin(&folder, out, true, err);
    if (!status)
        status = kvd_folded_list_make(&list, c, dims, err) ||
                 kvd_checkpoint_write(&w, &folder, err) ||
                 kvd_output_folder_commit(&folder, true, err);
    kvd_output_folder_release(&folder);
    kvd_folded_list_release(&list);
    return status ? -1 : 0;
}

static void test_family(void **state)
{
    const char *const name = *state;
    static const kvd_dtype f32 = KVD_F32;
    const kvd_dims_method *const methods[] = {&kvd_dims_zack, &kvd_dims_balanced};
    kvd_err err = {""};
    char path[128];
    (void)snprintf(path, sizeof path, "tests/data/families/%s", name);
    kvd_checkpoint *const c = open_model(path);
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t n = TOKENS * (size_t)config->vocab_size;
    float *const whole = dense_logits(c);
    for (int i = 0; i < 4; i++) {
        const bool full = i < 2;
        kvd_dims dims;
        make_dims(&dims, config, methods[i % 2], full);
        must(export_to(c, &dims, &f32, &err), &err);
        kvd_checkpoint *const folded = open_model(out);
        assert_string_equal(kvd_checkpoint_dtype(folded),
                            strcmp(name, "gpt-oss-mxfp4") ? "f32" : "mxfp4");
        float *const want = full ? NULL : cut_logits(c, &dims), *const got = dense_logits(folded);
        const double off = distance(got, full ? whole : want, n);
        if (!(off <= bar))
            fail_msg("%s, %s at %s width: logits are off by %.3g", name, methods[i % 2]->info.name,
                     full ? "full" : "ragged", off);
        /* Removing dimensions must change the logits, or their agreement with `want` would prove
         * nothing. */
        if (!full)
            assert_true(distance(got, whole, n) > 1e-2);
        kvd_checkpoint_close(folded);
        kvd_dims_release(&dims);
    }
    kvd_checkpoint_close(c);
}

static const char *const folded_names[] = {".v_proj.", ".o_proj.weight", ".q_proj.", ".k_proj.",
                                           ".out_proj.weight"};

static bool may_change(const kvd_config *c, const char *name)
{
    for (size_t i = 0; i < sizeof folded_names / sizeof *folded_names; i++)
        if (strstr(name, folded_names[i]))
            return (strcmp(folded_names[i], ".q_proj.") && strcmp(folded_names[i], ".k_proj.")) ||
                   kvd_folds_qk(c);
    return false;
}

static void assert_rest_is_same(const kvd_checkpoint *a, const kvd_checkpoint *b)
{
    const kvd_shards *const x = kvd_checkpoint_shards(a), *const y = kvd_checkpoint_shards(b);
    assert_int_equal(x->n_files, y->n_files);
    size_t changed = 0;
    for (size_t f = 0; f < x->n_files; f++) {
        if (x->name)
            assert_string_equal(x->name[f], y->name[f]);
        assert_int_equal(kvd_safetensors_count(x->file[f]), kvd_safetensors_count(y->file[f]));
        for (size_t i = 0; i < kvd_safetensors_count(x->file[f]); i++) {
            kvd_tensor_spec s, t;
            const void *p, *q;
            size_t n, m;
            kvd_safetensors_stored(x->file[f], i, &s, &p, &n);
            kvd_safetensors_stored(y->file[f], i, &t, &q, &m);
            assert_string_equal(s.name, t.name);
            assert_string_equal(s.dtype, t.dtype);
            assert_int_equal(s.rank, t.rank);
            assert_memory_equal(s.dims, t.dims, sizeof s.dims);
            assert_int_equal(n, m);
            const bool same = memcmp(p, q, n) == 0;
            assert_true(same || may_change(kvd_checkpoint_config(a), s.name));
            changed += !same;
        }
    }
    assert_true(changed > 0);
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    char command[400];
    (void)snprintf(command, sizeof command, "cmp '%s/%s' '%s/%s'", a, name, b, name);
    assert_int_equal(system(command), 0);
}

static void test_rest_stays(void **state)
{
    const char *const path = *state;
    kvd_err err = {""};
    kvd_checkpoint *const c = open_model(path);
    kvd_dims dims;
    make_dims(&dims, kvd_checkpoint_config(c), &kvd_dims_zack, false);
    must(export_to(c, &dims, NULL, &err), &err);
    kvd_checkpoint *const folded = open_model(out);
    assert_rest_is_same(c, folded);
    assert_same_file(path, out, "config.json");
    kvd_checkpoint_close(folded);
    kvd_checkpoint_close(c);
    kvd_dims_release(&dims);
}

TEST(test_shards)
{
    kvd_err err = {""};
    made_spec spec = MADE_SPEC_DEFAULTS;
    spec.shards = 3;
    spec.dtype = KVD_BF16;
    must(make_checkpoint(made, &spec, &err), &err);
    void *path = made;
    test_rest_stays(&path);
    kvd_checkpoint *const folded = open_model(out);
    assert_int_equal(kvd_checkpoint_shards(folded)->n_files, 3);
    kvd_checkpoint_close(folded);
}

TEST(test_names_without_base)
{
    enum { BASE = sizeof "model." - 1 };
    const char *const path = "tests/data/families/opt-before";
    kvd_err err = {""};
    kvd_checkpoint *const c = open_model(path);
    const kvd_safetensors *const file = kvd_checkpoint_shards(c)->file[0];
    const size_t n = kvd_safetensors_count(file);
    kvd_tensor_spec *const spec = unit_alloc(n * sizeof *spec);
    const void **const data = unit_alloc(n * sizeof *data);
    size_t *const bytes = unit_alloc(n * sizeof *bytes);
    for (size_t i = 0; i < n; i++) {
        kvd_safetensors_stored(file, i, &spec[i], &data[i], &bytes[i]);
        assert_int_equal(strncmp(spec[i].name, "model.", BASE), 0);
        spec[i].name += BASE;
    }
    char bare[80], weights[120], command[300];
    (void)snprintf(bare, sizeof bare, "%s/bare", place);
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", bare);
    (void)snprintf(command, sizeof command, "mkdir '%s' && cp %s/config.json '%s'", bare, path,
                   bare);
    assert_int_equal(system(command), 0);
    kvd_safetensors_writer *const w = kvd_safetensors_create(weights, spec, n, NULL, &err);
    must(!w, &err);
    for (size_t i = 0; i < n; i++)
        must(kvd_safetensors_append(w, spec[i].name, data[i], bytes[i], &err), &err);
    must(kvd_safetensors_finish(w, &err), &err);
    void *state_of = bare;
    test_rest_stays(&state_of);
    kvd_checkpoint *const folded = open_model(out);
    kvd_tensor t;
    assert_int_equal(kvd_shards_find(kvd_checkpoint_shards(folded),
                                     "decoder.layers.0.self_attn.v_proj.weight", &t, &err),
                     0);
    kvd_checkpoint_close(folded);
    kvd_checkpoint_close(c);
}

TEST(test_dtypes)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = open_model("tests/data/families/opt-before");
    kvd_dims dims;
    make_dims(&dims, kvd_checkpoint_config(c), &kvd_dims_zack, false);
    for (int t = KVD_F32; t <= KVD_BF16; t++) {
        const kvd_dtype dtype = (kvd_dtype)t;
        must(export_to(c, &dims, &dtype, &err), &err);
        kvd_checkpoint *const folded = open_model(out);
        const kvd_safetensors *const file = kvd_checkpoint_shards(folded)->file[0];
        kvd_tensor x;
        for (size_t i = 0; i < kvd_safetensors_count(file); i++) {
            assert_int_equal(kvd_safetensors_find(file, kvd_safetensors_name(file, i), &x, &err),
                             0);
            assert_int_equal(x.dtype, dtype);
        }
        kvd_checkpoint_close(folded);
    }
    kvd_dims_release(&dims);
    kvd_checkpoint_close(c);
}

TEST(test_refuses)
{
    kvd_err err = {""};
    static const kvd_dtype f16 = KVD_F16;
    kvd_folded_list list;
    kvd_dims dims;
    made_spec spec = MADE_SPEC_DEFAULTS;
    must(make_checkpoint(made, &spec, &err), &err);
    kvd_checkpoint *c = open_model(made);
    kvd_config bare = *kvd_checkpoint_config(c);
    bare.positions = KVD_POSITIONS_LEARNED;
    make_dims(&dims, &bare, &kvd_dims_zack, false);
    assert_int_equal(kvd_folded_list_make(&list, c, &dims, &err), -1);
    assert_string_equal(
        err.msg, "RoPE is applied between W_Q, W_K and the scores: the bases of Q-K do not fold");
    kvd_folded_list_release(&list);
    kvd_dims_leave(&dims, 0);

    /* Makes the projection of V so large that its product with the weight matrix W_V exceeds the
     * range of float16. */
    for (size_t i = 0; i < (size_t)(dims.d_head * dims.head[0].d_v); i++)
        dims.head[0].a_v[i] *= 1e6F;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", out);
    assert_int_equal(system(command), 0);
    assert_int_equal(export_to(c, &dims, &f16, &err), -1);
    assert_non_null(strstr(err.msg, "tensor 'model.layers.0.self_attn.v_proj.weight': element "));
    assert_non_null(strstr(err.msg, ", which f16 cannot hold"));
    assert_int_equal(access(out, F_OK), -1);
    strcat(out, ".partial");
    assert_int_equal(access(out, F_OK), -1);
    out[strlen(out) - strlen(".partial")] = '\0';
    kvd_checkpoint_close(c);

    char bin[80];
    (void)snprintf(bin, sizeof bin, "%s/made.bin", place);
    must(make_llama2c(bin, &spec, &err), &err);
    c = open_model(bin);
    assert_int_equal(export_to(c, &dims, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "made.bin' is not in safetensors"));
    kvd_checkpoint_close(c);
    kvd_dims_release(&dims);
}

#define FAMILY(name) TEST_WITH(name, test_family)
#define STAYS(path)  TEST_WITH(path, test_rest_stays)

int main(void)
{
    STAYS("tests/data/families/mistral-window");
    STAYS("tests/data/families/opt-before");
    STAYS("data/models/kvdim-6m");
    FAMILIES(FAMILY);
    ROUTED(FAMILY);
    return unit_run(make_place, NULL);
}
