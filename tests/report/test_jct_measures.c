#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "unit.h"

static const kvd_column columns[] = {
    {"kind", KVD_COL_TEXT, "1", "kind"},
    {"method", KVD_COL_TEXT, "1", "method"},
    {"name", KVD_COL_TEXT, "1", "name"},
    {"engine", KVD_COL_TEXT, "1", "engine"},
    {"dtype", KVD_COL_TEXT, "1", "type"},
    {"gpus", KVD_COL_INT, "1", "gpus"},
    {"phases", KVD_COL_INT, "1", "phases"},
    {"batch", KVD_COL_INT, "1", "batch"},
    {"input", KVD_COL_INT, "token", "in"},
    {"output", KVD_COL_INT, "token", "out"},
    {"prefill_s", KVD_COL_REAL, "s", "prompts"},
    {"decode_s", KVD_COL_REAL, "s", "steps"},
    {"jct_s", KVD_COL_REAL, "s", "jct"},
    {"prefill_compress_s", KVD_COL_REAL, "s", "compress"},
    {"decode_mlp_s", KVD_COL_REAL, "s", "mlp"},
    {"decode_restore_s", KVD_COL_REAL, "s", "restore"},
    {"parallel", KVD_COL_TEXT, "1", "how"},
    {"prefill_comm_s", KVD_COL_REAL, "s", "between"},
};

static void add(kvd_rows *r, const char *name, int gpus, int input, double jct, double compress,
                double restore)
{
    kvd_err err;
    OK(kvd_rows_begin(r, &err));
    kvd_rows_text(r, "kind", "job");
    kvd_rows_text(r, "method", name);
    kvd_rows_text(r, "name", name);
    kvd_rows_text(r, "engine", "a card, bf16");
    kvd_rows_text(r, "dtype", "bf16");
    kvd_rows_int(r, "gpus", gpus);
    kvd_rows_int(r, "phases", 1);
    kvd_rows_int(r, "batch", 1);
    kvd_rows_int(r, "input", input);
    kvd_rows_int(r, "output", 256);
    kvd_rows_real(r, "jct_s", jct);
    kvd_rows_real(r, "prefill_s", 0.2 * jct);
    kvd_rows_real(r, "decode_s", 0.8 * jct);
    kvd_rows_real(r, "prefill_compress_s", compress);
    kvd_rows_real(r, "decode_restore_s", restore);
    kvd_rows_real(r, "decode_mlp_s", 0);
}

static void add_shared(kvd_rows *r, const char *method, const char *name, int gpus, int input,
                       const char *parallel, double comm)
{
    add(r, name, gpus, input, 10, 1, 0);
    kvd_rows_text(r, "method", method);
    kvd_rows_text(r, "parallel", parallel);
    kvd_rows_real(r, "prefill_comm_s", comm);
}

static void is(const kvd_results *r, const char *name, const char *sizes, size_t n,
               const double *want)
{
    kvd_err err = {""};
    kvd_measured v = {0};
    if (kvd_jct_measure(r, name, sizes, &v, &err))
        fail_msg("%s: %s", name, err.msg);
    if (v.n != n)
        fail_msg("%s: %zu values, not %zu", name, v.n, n);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(v.value[i].value - want[i]) < 1e-9))
            fail_msg("%s, value %zu: %.12g, not %.12g", name, i, v.value[i].value, want[i]);
    kvd_values_release(&v);
}

TEST(test_measures)
{
    kvd_err err = {""};
    kvd_rows *const rows = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(rows);
    add(rows, "none", 1, 1000, 10, 0, 0.5);
    add(rows, "strawman", 1, 1000, 20, 2, 3);
    add(rows, "strawman", 1, 64, 4, 1, 1);
    /* a result that was measured on a CPU (0 GPUs) and must be ignored */
    add(rows, "strawman", 0, 1000, 20, 9, 9);
    add(rows, "zdc", 1, 1000, 20, 1, 0);
    add(rows, "zdc", 1, 1000, 20, 16, 0);
    kvd_rows_text(rows, "method", "zdc,online=1,g=0.1");
    kvd_result item = {.kind = KVD_RESULT_JCT, .has_model = true, .jct = rows};
    const kvd_results r = {.item = &item, .n = 1};
    is(&r, "jct-share-strawman-prefill_compress", "all", 2, (const double[]){10, 25});
    is(&r, "jct-share-strawman-prefill_compress+decode_restore", "1000x256", 1,
       (const double[]){25});
    is(&r, "jct-of-prompts-strawman-prefill_compress", "1000x256", 1, (const double[]){50});
    is(&r, "jct-of-steps-strawman-decode_restore", "all", 2, (const double[]){18.75, 31.25});
    is(&r, "jct-of-steps-strawman-decode_mlp", "all", 0, NULL);
    is(&r, "jct-extra-strawman-decode_restore", "1000x256", 1, (const double[]){12.5});
    is(&r, "jct-extra-strawman-decode_restore", "64x256", 0, NULL);
    is(&r, "jct-change-strawman-over-none", "all", 1, (const double[]){100});
    is(&r, "jct-share-palu-decode_restore", "all", 0, NULL);
    is(&r, "jct-share-zdc-prefill_compress", "all", 1, (const double[]){5});
    is(&r, "jct-share-zdc,online=1-prefill_compress", "all", 1, (const double[]){80});
    is(&r, "jct-growth-strawman-decode_restore", "1000x256+64x256", 1, (const double[]){10});
    is(&r, "jct-growth-strawman-decode_restore", "64x256+1000x256", 1, (const double[]){-10});
    is(&r, "jct-growth-strawman-decode_restore", "64x256+999x256", 0, NULL);
    add(rows, "strawman", 1, 2000, 20, 2, 3);
    kvd_rows_text(rows, "parallel", "sequence");
    is(&r, "jct-growth-strawman-decode_restore", "64x256+2000x256", 0, NULL);
    add(rows, "none", 1, 64, 2, 0, 0.5);
    kvd_rows_text(rows, "parallel", "sequence");
    is(&r, "jct-extra-strawman-decode_restore", "64x256", 0, NULL);
    kvd_measured v = {0};
    FAILS(kvd_jct_measure(&r, "jct-share-strawman-decode_magic", "all", &v, &err),
          "no part 'decode_magic'");
    assert_int_equal(kvd_jct_measure(&r, "jct-share-strawman-decode_mlp", "many", &v, &err), -1);
    kvd_values_release(&v);
    assert_true(kvd_jct_measure_known("jct-change-fdc-over-palu"));
    assert_false(kvd_jct_measure_known("jct-change-fdc"));
    assert_false(kvd_jct_measure_known("jct-share-"));
    assert_false(kvd_jct_measure_known("cv"));
    kvd_rows_free(rows);
}

static const kvd_column scored[] = {
    {"label", KVD_COL_TEXT, "1", "text"},     {"method", KVD_COL_TEXT, "1", "method"},
    {"settings", KVD_COL_TEXT, "1", "keys"},  {"p_wanted", KVD_COL_REAL, "1", "p"},
    {"perplexity", KVD_COL_REAL, "1", "ppl"}, {"prompt", KVD_COL_INT, "1", "prompt"},
};

static void add_score(kvd_rows *r, const char *method, const char *settings, double p, double ppl)
{
    kvd_err err;
    OK(kvd_rows_begin(r, &err));
    kvd_rows_text(r, "label", "wikipedia");
    kvd_rows_text(r, "method", method);
    kvd_rows_text(r, "settings", settings);
    kvd_rows_real(r, "p_wanted", p);
    kvd_rows_real(r, "perplexity", ppl);
}

/* Compares two methods' perplexities at equal job time. A method's log perplexity is interpolated
 * between two of its measured job times. */
TEST(test_equal_time)
{
    kvd_err err = {""};
    char a[] = "a", b[] = "b", c[] = "c";
    kvd_rows *const rows = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err),
                    *const others = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err),
                    *const ppl = kvd_rows_new(scored, sizeof scored / sizeof *scored, &err);
    assert_non_null(rows);
    assert_non_null(others);
    assert_non_null(ppl);
    add(rows, "h2o,heavy=0.1,recent=0.1", 1, 1000, 3, 0, 0);
    add(rows, "h2o,heavy=0.4,recent=0.4", 1, 1000, 5, 0, 0);
    add(rows, "zack,p=0.3", 1, 1000, 4, 0, 0);
    add(rows, "zack,p=0.5", 1, 1000, 2, 0, 0);
    add(rows, "zack,p=0.7", 1, 1000, 1, 0, 0);
    add(rows, "zack,online=1,p=0.5", 1, 1000, 3, 0, 0);
    add_score(ppl, "h2o", "h2o.heavy=0.1,h2o.recent=0.1", NAN, 22);
    add_score(ppl, "h2o", "h2o.heavy=0.4,h2o.recent=0.4", NAN, 20);
    add_score(ppl, "zack", "", 0.3, 10);
    add_score(ppl, "zack", "", 0.5, 12);
    add_score(ppl, "zack", "", 0.7, 40);
    add_score(ppl, "zack", "online=1", 0.5, 1);
    kvd_result item[] = {{.kind = KVD_RESULT_JCT, .name = a, .has_model = true, .jct = rows},
                         {.kind = KVD_RESULT_ACCURACY, .name = b, .has_model = true},
                         {.kind = KVD_RESULT_JCT, .name = c, .has_model = true, .jct = others}};
    item[1].accuracy.rows = ppl;
    const kvd_results r = {.item = item, .n = 2}, both = {.item = item, .n = 3};
    is(&r, "jct-perplexity-h2o-over-zack", "1000x256", 1,
       (const double[]){100 * (22 / sqrt(120) - 1)});
    is(&r, "jct-perplexity-h2o-over-zack", "64x256", 0, NULL);
    is(&r, "jct-perplexity-zack,online=1-over-zack", "all", 1,
       (const double[]){100 * (1 / sqrt(120) - 1)});
    /* All jobs of zack are faster than the streaming job, so streaming is compared with zack's
     * lowest perplexity, 10. */
    add(rows, "streaming", 1, 1000, 9, 0, 0);
    add_score(ppl, "streaming", "streaming.sink=4,streaming.recent=0.2", NAN, 11);
    is(&r, "jct-perplexity-streaming-over-zack", "all", 1, (const double[]){10});
    is(&r, "jct-perplexity-zack-over-streaming", "all", 1, (const double[]){100 * (10. / 11 - 1)});
    add_score(ppl, "h2o", "h2o.heavy=0.1,h2o.recent=0.1", NAN, 50);
    kvd_rows_int(ppl, "prompt", 12);
    is(&r, "jct-perplexity-h2o-over-zack", "1000x256", 1,
       (const double[]){100 * (22 / sqrt(120) - 1)});
    add_score(ppl, "zack", "", 0.3, 40);
    kvd_rows_int(ppl, "prompt", 12);
    add_score(ppl, "zack", "", 0.5, 40);
    kvd_rows_int(ppl, "prompt", 12);
    is(&r, "jct-perplexity-h2o-over-zack", "1000x256", 2,
       (const double[]){100 * (22 / sqrt(120) - 1), 25});
    strcpy(item[1].model.hash, "another");
    is(&r, "jct-perplexity-h2o-over-zack", "all", 0, NULL);
    /* Perplexities of one model must not be combined with job times of another model, even if there
     * are also job times of the first model. */
    strcpy(item[2].model.hash, "another");
    add(others, "none", 1, 1000, 5, 0, 0);
    is(&both, "jct-perplexity-h2o-over-zack", "all", 0, NULL);
    kvd_rows_free(rows);
    kvd_rows_free(others);
    kvd_rows_free(ppl);
}

TEST(test_shared_prompts)
{
    kvd_err err = {""};
    kvd_rows *const rows = kvd_rows_new(columns, sizeof columns / sizeof *columns, &err);
    assert_non_null(rows);
    add_shared(rows, "none", "none", 2, 1000, "sequence", 4);
    add_shared(rows, "none", "none", 4, 1000, "sequence", 2);
    /* Results with "tensor" (GPUs divide the heads) must be ignored; results with "sequence" (GPUs
     * divide the prompt) count. */
    add_shared(rows, "none", "none", 4, 1000, "tensor", 8);
    add_shared(rows, "none", "none", 1, 1000, "tensor", 0);
    add_shared(rows, "zack,p=0.3", "zack", 2, 1000, "sequence", 3);
    add_shared(rows, "zack,p=0.7", "zack", 2, 1000, "sequence", 1);
    add_shared(rows, "zack,p=0.3", "zack", 4, 1000, "sequence", 1);
    add_shared(rows, "zack,p=0.3", "zack", 4, 1000, "tensor", 8);
    add_shared(rows, "zack,p=0.3", "zack", 4, 64, "sequence", 1);
    kvd_result item = {.kind = KVD_RESULT_JCT, .has_model = true, .jct = rows};
    const kvd_results r = {.item = &item, .n = 1};
    is(&r, "jct-shared-none-prefill_comm", "all", 2, (const double[]){40, 20});
    is(&r, "jct-shared-none-prefill_comm+prefill_compress", "all", 2, (const double[]){50, 30});
    is(&r, "jct-shared-change-zack,p=0.3-prefill_comm-over-none", "all", 2,
       (const double[]){-25, -50});
    is(&r, "jct-shared-change-zack,p=0.7-prefill_comm-over-none", "1000x256", 1,
       (const double[]){-75});
    is(&r, "jct-shared-change-zack-prefill_comm-over-none", "all", 3,
       (const double[]){-25, -75, -50});
    is(&r, "jct-shared-change-zack,p=0.3-decode_restore-over-none", "all", 0, NULL);
    is(&r, "jct-share-zack,p=0.7-prefill_comm", "all", 1, (const double[]){10});
    assert_true(kvd_jct_measure_known("jct-shared-change-a-b-over-c"));
    assert_false(kvd_jct_measure_known("jct-shared-change-a-b"));
    assert_false(kvd_jct_measure_known("jct-shared-change-a-b-over-"));
    assert_false(kvd_jct_measure_known("jct-shared-change-a--over-c"));
    kvd_rows_free(rows);
}

TEST_MAIN(NULL, NULL)
