/* Tests that, with a flipped bit in the file, a reader fails or returns the original data. */
#include <xxhash.h>

#include "analysis/similarity.h"
#include "formats/fisher.h"
#include "make_dump.h"
#include "temp_folder.h"
#include "unit.h"

enum { N = 300, FLIPS = 80 };

static kvd_err err;
static char path[64], other[64];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "%s/x.h5", temp_folder());
    (void)snprintf(other, sizeof other, "%s/y.h5", temp_folder());
    return 0;
}

static XXH3_state_t *hash;

static void mix(const void *data, size_t bytes)
{
    assert_int_equal(XXH3_64bits_update(hash, data, bytes), XXH_OK);
}

static void mix_text(const char *text)
{
    mix(text, strlen(text) + 1);
}

static void mix_model(const kvd_model_info *m)
{
    const int64_t n[] = {m->n_layers, m->n_heads,    m->n_kv_heads,   m->d_head,
                         m->d_model,  m->vocab_size, m->max_positions};
    mix(n, sizeof n);
    mix(&m->rope_theta, sizeof m->rope_theta);
    mix_text(m->name);
    mix_text(m->hash);
    mix_text(m->family);
    mix_text(m->rope_layout);
    mix_text(m->dtype);
}

static int read_rows(kvd_activations *a, kvd_x x, int layer, int head)
{
    enum { PIECE = 77 }; /* tokens read at once; not a multiple of the tokens per checksum */
    static float rows[PIECE * 8];
    for (size_t t = 0; t < a->n_tokens; t += PIECE) {
        const size_t n = a->n_tokens - t < PIECE ? a->n_tokens - t : PIECE;
        if (kvd_activations_rows(a, x, layer, head, t, n, rows, NULL, &err))
            return -1;
        mix(rows, n * 8 * sizeof *rows);
    }
    return 0;
}

static int read_activations(void)
{
    kvd_activations a;
    static float w[8 * 32];
    size_t *start = NULL, n;
    if (kvd_activations_open(&a, path, &err))
        return -1;
    const int64_t sizes[] = {(int64_t)a.n_tokens,
                             (int64_t)a.n_sequences,
                             (int64_t)a.seq_len,
                             a.first_layer,
                             a.n_layers,
                             a.dtype,
                             a.has_pre};
    mix(sizes, sizeof sizes);
    mix_model(&a.model);
    mix_text(a.label);
    mix_text(a.corpus_hash);
    int rc = kvd_activations_sequences(&a, a.n_tokens - 10, &start, &n, &err);
    if (!rc)
        mix(start, n * sizeof *start);
    free(start);
    for (int l = 0; l < a.n_layers && !rc; l++) {
        for (int x = 0; x < KVD_N_X && !rc; x++)
            for (int h = 0; h < kvd_activations_heads(&a, (kvd_x)x) && !rc; h++)
                rc = read_rows(&a, (kvd_x)x, l, h);
        for (int h = 0; h < a.model.n_heads && !rc; h++)
            if (!(rc = kvd_activations_w_o(&a, l, h, w, &err)))
                mix(w, sizeof w);
        for (int h = 0; h < a.model.n_kv_heads && !rc; h++)
            if (!(rc = kvd_activations_w_v(&a, l, h, w, &err)))
                mix(w, sizeof w);
    }
    kvd_activations_close(&a);
    return rc;
}

static int read_fisher(void)
{
    enum { PIECE = 77 };
    static float rows[PIECE * 8];
    kvd_fisher f;
    if (kvd_fisher_open(&f, path, &err))
        return -1;
    const size_t heads = (size_t)f.n_layers * (size_t)f.model.n_kv_heads,
                 d = (size_t)f.model.d_head;
    const size_t sizes[] = {f.n_tokens, f.n_sequences, f.seq_len, f.n_predicted, f.n_rows};
    int rc = 0;
    mix(sizes, sizeof sizes);
    mix_model(&f.model);
    mix_text(f.label);
    mix_text(f.corpus_hash);
    mix(&f.loss, sizeof f.loss);
    for (int i = 0; i < KVD_N_F; i++)
        mix(f.sum[i], heads * d * sizeof(double));
    for (int side = 0; side < KVD_F_SIDES; side++) {
        mix(f.weight[side], heads * sizeof(double));
        mix(f.root[side], heads * sizeof(double));
        for (size_t i = 0; i < heads && !rc; i++)
            for (size_t t = 0; t < f.n_rows && !rc; t += PIECE) {
                const size_t n = f.n_rows - t < PIECE ? f.n_rows - t : PIECE;
                const size_t kv = (size_t)f.model.n_kv_heads;
                rc = kvd_fisher_rows(&f, side, (int)(i / kv), (int)(i % kv), t, n, rows, &err);
                if (!rc)
                    mix(rows, n * d * sizeof *rows);
            }
    }
    kvd_fisher_close(&f);
    return rc;
}

static int read_moments(void)
{
    kvd_moments m;
    if (kvd_moments_load(&m, path, &err))
        return -1;
    const size_t sizes[] = {m.n_tokens, m.n_sequences, m.seq_len, (size_t)m.first_layer,
                            (size_t)m.n_layers};
    mix(sizes, sizeof sizes);
    mix_model(&m.model);
    mix_text(m.label);
    mix_text(m.corpus_hash);
    for (int g = 0; g < KVD_N_G; g++)
        if (m.gram[g])
            mix(m.gram[g], kvd_moments_count(&m, (kvd_g)g) * sizeof(double));
    kvd_moments_release(&m);
    return 0;
}

static int read_spectrum(void)
{
    kvd_spectrum s;
    if (kvd_spectrum_load(&s, path, &err))
        return -1;
    const size_t sizes[] = {s.n_tokens, s.seq_len, (size_t)s.first_layer, (size_t)s.n_layers,
                            s.pairing};
    const size_t d = (size_t)s.model.d_head;
    mix(sizes, sizeof sizes);
    mix_model(&s.model);
    mix_text(s.label);
    mix_text(s.corpus_hash);
    mix_text(s.method);
    mix_text(s.rope);
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        const size_t n = s.pair[p].present ? (size_t)s.n_layers * (size_t)s.pair[p].n_h : 0;
        mix(s.pair[p].sigma, n * d * sizeof(double));
        mix(s.pair[p].R, n * d * d * sizeof(double));
        mix(s.pair[p].right, s.pair[p].right ? n * d * d * sizeof(double) : 0);
    }
    kvd_spectrum_release(&s);
    return 0;
}

static void make_activations(const char *name)
{
    dump_plan p;
    dump_plan_init(&p, N, 1);
    p.a.n_sequences = 4;
    p.a.seq_len = N;
    p.a.has_pre = true;
    OK(write_dump(&p, name, test_run(), &err));
}

static void make_fisher(void)
{
    dump_plan p;
    static float rows[2 * N * 8];
    dump_plan_init(&p, N, 1);
    kvd_fisher f = {.model = p.a.model,
                    .label = "text",
                    .corpus_hash = "xxh3:1",
                    .n_tokens = N,
                    .n_sequences = 1,
                    .seq_len = N,
                    .n_layers = 2,
                    .n_rows = N};
    OK(kvd_fisher_create(&f, path, test_run(), &err));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        rows[i] = (float)(i % 1000);
    for (int l = 0; l < 2; l++)
        for (int side = 0; side < KVD_F_SIDES; side++)
            for (size_t t = 0; t < N; t += 100)
                OK(kvd_fisher_put_rows(&f, side, l, t, 100, rows, &err));
    for (size_t i = 0; i < 2 * 2 * 8; i++)
        f.sum[KVD_F_V][i] = (double)i;
    f.loss = 7.5;
    OK(kvd_fisher_finish(&f, &err));
    kvd_fisher_close(&f);
}

static void make_moments(void)
{
    make_activations(other);
    OK(write_moments(other, path, test_run(), &err));
}

static void make_spectrum(void)
{
    dump_plan p;
    kvd_h5 f;
    dump_plan_init(&p, N, 1);
    p.a.model.d_head = 32;
    kvd_spectrum s = {.model = p.a.model, .n_tokens = N, .seq_len = N, .n_layers = 2};
    s.model.n_layers = 2;
    s.model.n_kv_heads = s.model.n_heads;
    (void)snprintf(s.label, sizeof s.label, "text");
    (void)snprintf(s.corpus_hash, sizeof s.corpus_hash, "xxh3:1");
    (void)snprintf(s.method, sizeof s.method, "svd");
    (void)snprintf(s.rope, sizeof s.rope, "after");
    OK(kvd_spectrum_alloc(&s, KVD_PAIR_QK, &err));
    s.pair[KVD_PAIR_QK].n_rows = N;
    for (int l = 0; l < 2; l++)
        for (int h = 0; h < s.pair[KVD_PAIR_QK].n_h; h++) {
            for (int i = 0; i < 32; i++)
                kvd_spectrum_sigma(&s, KVD_PAIR_QK, l, h)[i] = 32 - i;
            OK(kvd_random_basis(32, 1, (uint64_t)(l * 8 + h), kvd_spectrum_R(&s, KVD_PAIR_QK, l, h),
                                &err));
        }
    OK(kvd_h5_create(&f, path, &kvd_schema_spectrum, test_run(), &err) ||
       kvd_spectrum_write(&f, &s, &err) || kvd_h5_finish(&f, &err));
    kvd_spectrum_release(&s);
}

static int read_hash(int (*reader)(void), uint64_t *result)
{
    hash = XXH3_createState();
    assert_int_equal(XXH3_64bits_reset(hash), XXH_OK);
    const int rc = reader();
    *result = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return rc;
}

static void flip(int (*reader)(void), const char *message)
{
    size_t n;
    uint64_t want, found;
    int noticed = 0, said = 0;
    kvd_rng rng;
    unsigned char *const data = unit_read(path, &n);
    OK(read_hash(reader, &want));
    kvd_rng_seed(&rng, 1, n);
    for (int i = 0; i < FLIPS; i++) {
        size_t bit;
        do
            bit = (size_t)(kvd_rng_uniform(&rng) * 8 * (double)n);
        /* In every second trial, flips a bit of a nonzero byte, as zero bytes are mostly unused. */
        while (i % 2 && !data[bit / 8]);
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1 << bit % 8);
        unit_write(path, data, n);
        if (read_hash(reader, &found)) {
            noticed++;
            assert_non_null(strstr(err.msg, path));
            assert_null(strchr(err.msg, '\n'));
            said += strstr(err.msg, message) != NULL;
        } else if (found != want) {
            fail_msg("bit %zu of byte %zu of %zu changes a value", bit % 8, bit / 8, n);
        }
        data[bit / 8] = (unsigned char)(data[bit / 8] ^ 1 << bit % 8);
    }
    assert_true(noticed >= FLIPS / 3);
    assert_true(said > 0);
}

TEST(test_activations)
{
    make_activations(path);
    flip(read_activations, "do not match their checksum; copy or make the file again");
}

TEST(test_fisher)
{
    make_fisher();
    flip(read_fisher, "do not match their checksum; copy or make the file again");
}

TEST(test_moments)
{
    make_moments();
    flip(read_moments, "is damaged");
}

TEST(test_spectrum)
{
    make_spectrum();
    flip(read_spectrum, "is damaged");
}

TEST_MAIN(set_up, NULL)
