#include <math.h>
#include <string.h>
#include <unistd.h>

#include "collect/state.h"
#include "collect/sums.h"
#include "collect_fixture.h"
#include "model/model_info.h"
#include "unit.h"

enum { N = 700, LAYERS = 2, FIRST = 1, HEADS = 4, KV = 2, D = 8, MODEL = 20 };

static void describe(kvd_moments *m, bool has_pre)
{
    memset(m, 0, sizeof *m);
    kvd_model_info_set(&m->model, &fixture_config, "tiny", "xxh3:0123", "f32");
    snprintf(m->label, sizeof m->label, "made up");
    snprintf(m->corpus_hash, sizeof m->corpus_hash, "xxh3:%032x", 0x4567);
    m->n_tokens = N;
    m->n_sequences = 44;
    m->seq_len = 16;
    m->first_layer = FIRST;
    m->n_layers = LAYERS;
    m->has_pre = has_pre;
}

static int heads_of(int g)
{
    return g == KVD_G_Q || g == KVD_G_Q_PRE || g == KVD_G_W_O ? HEADS : KV;
}

static float *tensor(int g, int layer)
{
    return fixture_values((size_t)N * (size_t)heads_of(g) * D, (uint64_t)(10 * layer + g + 1));
}

static void add(kvd_moments *m, size_t first, size_t last, size_t batch, int threads)
{
    kvd_accumulator a;
    kvd_err err = {""};
    OK(kvd_accumulator_init(&a, m, threads, &err));
    for (int layer = 0; layer < fixture_config.n_layers; layer++) {
        float *x[5];
        for (int g = 0; g < 5; g++)
            x[g] = tensor(g, layer);
        for (size_t t = first; t < last; t += batch) {
            const kvd_attention_in in = {.config = &fixture_config,
                                         .layer = layer,
                                         .n_tokens = last - t < batch ? last - t : batch,
                                         .q = x[0] + t * HEADS * D,
                                         .k = x[1] + t * KV * D,
                                         .v = x[2] + t * KV * D,
                                         .q_pre = x[3] + t * HEADS * D,
                                         .k_pre = x[4] + t * KV * D};
            OK(kvd_accumulator_record(&a, &in, &err));
        }
    }
    float *w = fixture_values(HEADS * D * MODEL, 99);
    for (int l = 0; l < LAYERS; l++)
        OK(kvd_accumulator_weights(&a, l, w, w + 7, &err));
    kvd_accumulator_release(&a);
}

static void make(kvd_moments *m, bool has_pre)
{
    kvd_err err;
    describe(m, has_pre);
    OK(kvd_moments_alloc(m, &err));
    add(m, 0, N, 100, 2);
}

TEST(test_definition)
{
    kvd_moments m;
    make(&m, true);
    float *w = fixture_values(HEADS * D * MODEL, 99);
    for (int g = 0; g < KVD_N_G; g++)
        for (int l = 0; l < LAYERS; l++) {
            const bool weight = g >= KVD_G_W_O;
            float *x = weight ? NULL : tensor(g, FIRST + l);
            for (int h = 0; h < heads_of(g); h++) {
                const double *G = kvd_moments_at(&m, (kvd_g)g, l, h);
                for (int i = 0; i < D; i++)
                    for (int j = 0; j < D; j++) {
                        long double sum = 0, size = 0;
                        for (int t = 0; t < (weight ? MODEL : N); t++) {
                            const float *head = w + (g == KVD_G_W_V ? 7 : 0) + h * D * MODEL;
                            const float *row = weight ? NULL : x + (t * heads_of(g) + h) * D;
                            const double a = weight ? head[i * MODEL + t] : row[i];
                            const double b = weight ? head[j * MODEL + t] : row[j];
                            sum += (long double)a * b;
                            size += fabsl((long double)a * b);
                        }
                        if (fabsl(G[i * D + j] - sum) > 1e-13L * size)
                            fail_msg("%s layer %d head %d: %.17g, %.17Lg", kvd_g_name[g], l, h,
                                     G[i * D + j], sum);
                    }
            }
        }
    kvd_moments_release(&m);
}

static void assert_same_sums(const kvd_moments *a, const kvd_moments *b)
{
    for (int g = 0; g < KVD_N_G; g++) {
        assert_int_equal(kvd_moments_count(a, (kvd_g)g), kvd_moments_count(b, (kvd_g)g));
        if (a->gram[g])
            assert_memory_equal(a->gram[g], b->gram[g],
                                kvd_moments_count(a, (kvd_g)g) * sizeof(double));
    }
}

TEST(test_threads_do_not_matter)
{
    kvd_moments a, b;
    kvd_err err;
    make(&a, true);
    describe(&b, true);
    OK(kvd_moments_alloc(&b, &err));
    add(&b, 0, N, 100, 1);
    assert_same_sums(&a, &b);
    kvd_moments_release(&a);
    kvd_moments_release(&b);
}

static const char *write_as(const char *name, const kvd_moments *m)
{
    const char *path = temp_file(name);
    kvd_h5 f;
    kvd_err err = {""};
    OK(kvd_h5_create(&f, path, &kvd_schema_moments, test_run(), &err) ||
       kvd_moments_write(&f, m, &err) || kvd_h5_finish(&f, &err));
    return path;
}

TEST(test_comes_back)
{
    for (int pre = 0; pre < 2; pre++) {
        kvd_moments m, back;
        kvd_err err = {""};
        make(&m, pre);
        OK(kvd_moments_load(&back, write_as("m.h5", &m), &err));
        assert_same_sums(&m, &back);
        assert_int_equal(back.n_tokens, N);
        assert_int_equal(back.n_sequences, 44);
        assert_int_equal(back.seq_len, 16);
        assert_int_equal(back.first_layer, FIRST);
        assert_int_equal(back.n_layers, LAYERS);
        assert_int_equal(back.has_pre, pre);
        assert_string_equal(back.label, m.label);
        assert_string_equal(back.corpus_hash, m.corpus_hash);
        OK(kvd_model_info_same(&m.model, "a", &back.model, "b", &err));
        kvd_moments_release(&m);
        kvd_moments_release(&back);
    }
}

TEST(test_add)
{
    kvd_moments whole, a, b;
    kvd_err err = {""};
    make(&whole, true);
    describe(&a, true);
    describe(&b, true);
    a.n_tokens = 300;
    b.n_tokens = N - 300;
    b.seq_len = 32;
    snprintf(b.label, sizeof b.label, "other");
    OK(kvd_moments_alloc(&a, &err));
    OK(kvd_moments_alloc(&b, &err));
    add(&a, 0, 300, 100, 2);
    add(&b, 300, N, 100, 2);
    OK(kvd_moments_add(&a, "a.h5", &b, "b.h5", &err));
    assert_int_equal(a.n_tokens, N);
    assert_int_equal(a.n_sequences, 88);
    assert_int_equal(a.seq_len, 32);
    assert_string_equal(a.label, "made up+other");
    assert_string_equal(a.corpus_hash, "xxh3:00000000000000000000000000008ace");
    for (int g = 0; g < KVD_N_G; g++)
        for (size_t i = 0; i < kvd_moments_count(&a, (kvd_g)g); i++)
            if (fabs(a.gram[g][i] - whole.gram[g][i]) > 1e-9)
                fail_msg("%s [%zu]: %.17g, %.17g", kvd_g_name[g], i, a.gram[g][i],
                         whole.gram[g][i]);
    kvd_moments_release(&whole);
    kvd_moments_release(&a);
    kvd_moments_release(&b);
}

static void refuse_add(const kvd_moments *a, const kvd_moments *b, const char *message)
{
    kvd_moments sum = *a;
    kvd_err err = {""};
    FAILS(kvd_moments_add(&sum, "a.h5", b, "b.h5", &err), message);
}

TEST(test_add_refuses)
{
    kvd_moments a, b;
    make(&a, false);
    make(&b, false);
    b.first_layer = 0;
    refuse_add(&a, &b, "'a.h5' and 'b.h5' have different layers: 1-2 and 0-1");
    b.first_layer = 1;
    b.has_pre = true;
    refuse_add(&a, &b, "only 'b.h5' has moments before RoPE, not 'a.h5'");
    b.has_pre = false;
    snprintf(b.model.hash, sizeof b.model.hash, "xxh3:other");
    refuse_add(&a, &b,
               "'a.h5' and 'b.h5' are of different models: hash is xxh3:0123 and xxh3:other");
    b.model = a.model;
    b.gram[KVD_G_W_V][3] += 1;
    refuse_add(&a, &b, "'a.h5' and 'b.h5' are of different models: /gram/w_v differs by 1");
    kvd_moments_release(&a);
    kvd_moments_release(&b);
}

static void refuse_file(const kvd_moments *m, const char *end)
{
    kvd_moments back;
    kvd_err err = {""};
    char want[512];
    const char *path = write_as("bad.h5", m);
    snprintf(want, sizeof want, "'%s'", path);
    assert_int_equal(kvd_moments_load(&back, path, &err), -1);
    assert_int_equal(strncmp(err.msg, want, strlen(want)), 0);
    if (!strstr(err.msg, end))
        fail_msg("'%s' does not say '%s'", err.msg, end);
    for (int g = 0; g < KVD_N_G; g++)
        assert_null(back.gram[g]);
}

TEST(test_hostile_files)
{
    kvd_moments m;
    make(&m, false);
    double *G = kvd_moments_at(&m, KVD_G_K, 1, 1), kept = G[9];
    G[9] = -1;
    refuse_file(&m, "/gram/k layer 1 head 1: diagonal 1 is -1, below 0");
    G[9] = NAN;
    refuse_file(&m, " /gram/k[1][1][1][1] is nan");
    G[9] = kept;
    kept = G[1];
    G[1] += 1;
    refuse_file(&m, "/gram/k layer 1 head 1 is not symmetric at 1, 0");
    G[1] = G[8] = 1.001 * sqrt(G[0] * G[9]);
    refuse_file(&m, "/gram/k layer 1 head 1: entry 1, 0 is ");
    G[1] = G[8] = kept;
    m.n_tokens = 44 * 16 + 1;
    refuse_file(&m, ": 705 tokens do not fit into 44 sequences of at most 16");
    m.n_tokens = 0;
    refuse_file(&m, ": 0 tokens");
    m.n_tokens = N;
    m.model.n_layers = 1;
    refuse_file(&m, ": /gram/q has 2 layers, the model 1");
    m.model.n_layers = 3;
    m.first_layer = 2;
    refuse_file(&m, ": attribute first_layer of / is 2, should be 0 to 1");
    m.first_layer = FIRST;
    m.has_pre = false;
    double *q_pre = m.gram[KVD_G_Q_PRE];
    m.gram[KVD_G_Q_PRE] =
        m.gram[KVD_G_Q]; /* Q before RoPE without K before RoPE must be an error */
    refuse_file(&m, "/gram/k_pre");
    m.gram[KVD_G_Q_PRE] = q_pre;
    kvd_moments_release(&m);
}

TEST(test_sizes_that_overflow)
{
    kvd_moments m;
    kvd_err err;
    describe(&m, false);
    m.model.n_layers = m.n_layers = 999999;
    m.model.n_heads = m.model.n_kv_heads = 999999;
    m.model.d_head = 999999;
    FAILS(kvd_moments_alloc(&m, &err),
          "moments of 999999 layers, 999999 heads, d_head 999999 are too large");
}

TEST(test_nonfinite_row)
{
    kvd_moments m;
    kvd_accumulator a;
    kvd_err err = {""};
    describe(&m, false);
    OK(kvd_moments_alloc(&m, &err));
    OK(kvd_accumulator_init(&a, &m, 2, &err));
    float *q = tensor(0, 0), *k = tensor(1, 0), *v = tensor(2, 0);
    v[(5 * KV + 1) * D + 3] = NAN;
    const kvd_attention_in in = {
        .config = &fixture_config, .layer = 2, .n_tokens = N, .q = q, .k = k, .v = v};
    assert_int_equal(kvd_accumulator_record(&a, &in, &err), -1);
    assert_int_equal(strncmp(err.msg, "layer 2 head 1: v: ", 19), 0);
    kvd_accumulator_release(&a);
    kvd_moments_release(&m);
}

static void make_key(kvd_run_key *k, const char *corpus, int batch)
{
    kvd_err err;
    *k = (kvd_run_key){.used = 0};
    assert_int_equal(kvd_run_key_add(k, &err, "corpus", "%s", corpus), 0);
    assert_int_equal(kvd_run_key_add(k, &err, "batch", "%d", batch), 0);
}

TEST(test_state)
{
    const char *path = temp_file("x.state");
    kvd_moments m, back;
    kvd_run_key key, other;
    kvd_state s = {.run_id = "0123", .n_sequences = 5, .n_tokens = 80}, t;
    kvd_err err = {""};
    int found;
    make(&m, true);
    describe(&back, true);
    OK(kvd_moments_alloc(&back, &err));
    make_key(&key, "one", 512);
    memcpy(s.key, key.text, key.used + 1);
    OK(kvd_state_load(path, &t, &key, &back, NULL, &found, &err));
    assert_int_equal(found, 0);
    OK(kvd_state_save(path, &s, &m, NULL, &err) ||
       kvd_state_load(path, &t, &key, &back, NULL, &found, &err));
    assert_int_equal(found, 1);
    assert_int_equal(t.n_sequences, 5);
    assert_int_equal(t.n_tokens, 80);
    assert_string_equal(t.run_id, "0123");
    add(&back, 0, 0, 1, 1);
    assert_same_sums(&m, &back);

    make_key(&other, "one", 256);
    OK(kvd_state_load(path, &t, &other, &back, NULL, &found, &err));
    FAILS(kvd_run_key_same("x", "cannot be resumed", t.key, &other, &err),
          "'x' cannot be resumed: batch was '512', is now '256'");
    make_key(&other, "one", 512);
    OK(kvd_run_key_same("x", "cannot be resumed", t.key, &other, &err));
    assert_int_equal(kvd_run_key_add(&other, &err, "more", "1"), 0);
    FAILS(kvd_run_key_same("x", "differs", t.key, &other, &err),
          "'x' differs: it has '' where this run has 'more=1'");
    kvd_moments_release(&m);
    kvd_moments_release(&back);
}

TEST(test_damaged_state)
{
    const char *path = temp_file("y.state");
    kvd_moments m;
    kvd_run_key key;
    kvd_state s = {.run_id = "0123", .n_sequences = 5, .n_tokens = 80}, t;
    kvd_err err = {""};
    int found;
    make(&m, false);
    make_key(&key, "one", 512);
    memcpy(s.key, key.text, key.used + 1);
    OK(kvd_state_save(path, &s, &m, NULL, &err));
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long size = ftell(f);
    for (long at = 0; at < size; at += at < 200 ? 1 : 997) {
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        const int c = fgetc(f);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_equal(fputc(c ^ 1, f), c ^ 1);
        assert_int_equal(fflush(f), 0);
        const int rc = kvd_state_load(path, &t, &key, &m, NULL, &found, &err);
        if (!rc)
            fail_msg("byte %ld changed without notice", at);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_equal(fputc(c, f), c);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(truncate(path, size - 1), 0);
    assert_int_equal(kvd_state_load(path, &t, &key, &m, NULL, &found, &err), -1);
    char want[256];
    snprintf(want, sizeof want, "'%s' is damaged: its checksum differs", path);
    assert_string_equal(err.msg, want);
    kvd_moments_release(&m);
}

TEST_MAIN(NULL, NULL)
