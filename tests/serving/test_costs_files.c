#include <string.h>

#include "jct_fixture.h"
#include "serving/simulate/costs.h"
#include "serving/simulate/costs_files.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static char first[64], second[64];
static const char *const both[] = {first, second};

static int set_up(void **state)
{
    (void)state;
    snprintf(first, sizeof first, "%s/a.h5", temp_folder());
    snprintf(second, sizeof second, "%s/b.h5", temp_folder());
    return 0;
}

static void add(jct_fixture *x, const char *method, int gpus)
{
    x->setting.method = method;
    x->setting.gpus = gpus;
    OK(jct_fixture_piece(x, 64, 0, 1e-3, &err));
    OK(jct_fixture_piece(x, 512, 0, 2e-3, &err));
    OK(jct_fixture_step(x, 1, 100, 1e-3, &err));
    OK(jct_fixture_step(x, 2, 100, 1e-3, &err));
}

static void write_file(const char *path, const char *gpu, int gpus, bool graphs, const char *a,
                       const char *b)
{
    jct_fixture x;
    snprintf(test_run()->gpu, sizeof test_run()->gpu, "%s", gpu);
    OK(jct_fixture_begin(&x, &err));
    x.setting.graphs = graphs;
    add(&x, a, gpus);
    if (b)
        add(&x, b, gpus);
    OK(jct_fixture_end(&x, path, test_run(), &err));
}

static void refused(int gpus, const char *form)
{
    char whole[400];
    snprintf(whole, sizeof whole, form, first, second);
    assert_null(kvd_costs_files_open(both, 2, gpus, &err));
    assert_string_equal(err.msg, whole);
}

TEST(test_merged)
{
    size_t n;
    write_file(first, "card", 1, true, "none", "zack,p=0.5");
    write_file(second, "card", 1, true, "kivi,bits=4", "h2o");
    kvd_costs_files *f = kvd_costs_files_open(both, 2, -1, &err);
    assert_non_null(f);
    const char *const *const method = kvd_costs_files_methods(f, &n);
    static const char *const want[] = {"none", "zack,p=0.5", "kivi,bits=4", "h2o"};
    assert_int_equal(n, 4);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(method[i], want[i]);
        assert_string_equal(kvd_costs_files_of(f, method[i], &err), both[i / 2]);
    }
    assert_string_equal(kvd_costs_files_apart(f), "");
    assert_string_equal(kvd_costs_files_model(f)->name, "tiny");
    assert_null(kvd_costs_files_of(f, "palu", &err));
    assert_string_equal(
        err.msg, "--method palu: the 2 files of --costs have: none; zack,p=0.5; kivi,bits=4; h2o");
    kvd_costs_files_free(f);
    kvd_costs_files_free(NULL);
}

TEST(test_a_method_twice)
{
    char whole[400];
    size_t n;
    write_file(first, "card", 1, true, "none", "zack,p=0.5");
    snprintf(test_run()->driver, sizeof test_run()->driver, "570");
    write_file(second, "card", 1, true, "none", "h2o");
    test_run()->driver[0] = '\0';
    kvd_costs_files *f = kvd_costs_files_open(both, 2, -1, &err);
    assert_non_null(f);
    assert_non_null(kvd_costs_files_methods(f, &n));
    assert_int_equal(n, 3);
    assert_string_equal(kvd_costs_files_of(f, "h2o", &err), second);
    assert_null(kvd_costs_files_of(f, "none", &err));
    snprintf(
        whole, sizeof whole,
        "'%s' has 4 iterations of none and '%s' 4: leave one file out, or name other methods with --method",
        first, second);
    assert_string_equal(err.msg, whole);
    snprintf(whole, sizeof whole, "'%s' and '%s' were measured under the drivers none and 570",
             first, second);
    assert_string_equal(kvd_costs_files_apart(f), whole);
    kvd_costs_files_free(f);
}

TEST(test_conflicts)
{
    write_file(first, "card", 1, true, "none", NULL);
    write_file(second, "another card", 1, true, "h2o", NULL);
    refused(-1, "'%s' was measured on card and '%s' on another card");
    write_file(second, "card", 2, true, "h2o", NULL);
    refused(-1, "'%s' was measured on 1 and '%s' on 2 GPUs: say which with --gpus");
    assert_null(kvd_costs_files_open(both, 2, 2, &err));
    assert_non_null(strstr(err.msg, "/a.h5' has no row of kind iteration on 2 GPUs"));
    write_file(second, "card", 1, false, "h2o", NULL);
    refused(-1, "'%s' was measured with --graphs on and '%s' with --graphs off");
    assert_int_equal(kvd_run_parameter(test_run(), "pages", &err, "900"), 0);
    write_file(second, "card", 1, true, "h2o", NULL);
    refused(-1, "'%s' was measured with --pages unknown and '%s' with --pages 900");
    write_file(first, "card", 1, true, "none", NULL);
    kvd_costs_files *f = kvd_costs_files_open(both, 2, -1, &err);
    assert_non_null(f);
    kvd_costs_files_free(f);
    write_file(first, "none", 0, true, "none", NULL);
    const int threads = test_run()->threads;
    test_run()->threads = threads + 3;
    write_file(second, "none", 0, true, "h2o", NULL);
    test_run()->threads = threads;
    char words[80];
    assert_null(kvd_costs_files_open(both, 2, -1, &err));
    snprintf(words, sizeof words, "on %d threads", threads + 3);
    assert_non_null(strstr(err.msg, words));
}

TEST(test_another_model)
{
    write_file(first, "card", 1, true, "none", NULL);
    write_file(second, "card", 1, true, "h2o", NULL);
    hid_t id = H5Fopen(second, H5F_ACC_RDWR, H5P_DEFAULT);
    const int64_t layers = 3;
    hid_t model = H5Gopen2(id, "model", H5P_DEFAULT), a = H5Aopen(model, "n_layers", H5P_DEFAULT);
    assert_true(a >= 0 && H5Awrite(a, H5T_NATIVE_INT64, &layers) >= 0);
    H5Aclose(a);
    H5Gclose(model);
    H5Fclose(id);
    refused(-1, "'%s' and '%s' are of different models: n_layers is 2 and 3");
}

TEST(test_no_iterations)
{
    jct_fixture x;
    char whole[200];
    const kvd_jct_request only = {.input = 3, .output = 1, .ttft = 1, .jct = 1};
    OK(jct_fixture_begin(&x, &err));
    OK(kvd_jct_add_request(x.rows, &x.setting, &only, &err));
    OK(jct_fixture_end(&x, first, test_run(), &err));
    assert_null(kvd_costs_files_open(both, 1, -1, &err));
    snprintf(whole, sizeof whole,
             "'%s' has no row of kind iteration: kvdim-jct --iterations makes them", first);
    assert_string_equal(err.msg, whole);
}

TEST(test_attention)
{
    size_t n;
    write_file(first, "card", 1, true, "none", "zack,p=0.5");
    assert_int_equal(kvd_run_parameter(test_run(), "attention", &err, "stock"), 0);
    write_file(second, "card", 1, true, "zack,p=0.5", "none");
    kvd_costs_files *f = kvd_costs_files_open(both, 2, -1, &err);
    assert_non_null(f);
    const char *const *const method = kvd_costs_files_methods(f, &n);
    static const char *const want[] = {"none", "zack,p=0.5", "zack@stock,p=0.5", "none@stock"};
    assert_int_equal(n, 4);
    for (size_t i = 0; i < n; i++) {
        assert_string_equal(method[i], want[i]);
        assert_string_equal(kvd_costs_files_of(f, method[i], &err), both[i / 2]);
    }
    kvd_costs *c = kvd_costs_load(second, "zack@stock,p=0.5", -1, &err);
    assert_non_null(c);
    kvd_costs_free(c);
    assert_null(kvd_costs_load(second, "zack,p=0.5", -1, &err));
    kvd_costs_files_free(f);
}

TEST_MAIN(set_up, NULL)
